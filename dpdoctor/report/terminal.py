"""The report for a terminal: the same facts as the page's first screen."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dpdoctor import units
from dpdoctor.analysis import Analysis, Finding, ModeSummary, RunSummary
from dpdoctor.report import clauses, diagnosis, standing, verdict
from dpdoctor.report.text import (
    NOTHING,
    batch_text,
    by_reason,
    figure_text,
    interval_words,
    left_alone,
    mode_label,
    remarks,
    sentence,
    short_interval,
    status_tone,
)
from dpdoctor.report.traces import terminal as trace_terminal
from dpdoctor.report.traces import verdict as trace_verdict
from dpdoctor.report.traces.traced import is_trace_run

_STYLES = {"plain": "bold", "good": "bold green", "warn": "bold yellow", "bad": "bold red", "muted": "dim"}
_NUMERIC = ("samples/s", "step", "speedup", "linear", "epoch", "batch")
_WITH_INTERVAL = ("samples/s", "speedup")


def summary(analysis: Analysis) -> RenderableType:
    """Return the verdict, the costliest findings, a table of the modes, what failed with its last stderr lines, remarks
    and files left alone.

    Of a run made of traces alone: the verdict and a table of the devices.

    All text from the run is literal: rich's markup in it is not interpreted.
    """
    run = analysis.summary
    if is_trace_run(analysis):
        return Group(trace_terminal.summary(analysis), *_findings(run))
    return Group(
        *_verdict(run),
        *_findings(run),
        _table(run),
        *_notes(run),
        *_late(analysis),
        *_troubles(run),
        *_remarks(run),
        *_files(run),
    )


def _verdict(run: RunSummary) -> Iterator[RenderableType]:
    found = verdict.headline(run)
    yield Text(found.sentence, style=_STYLES[found.tone])
    if found.detail:
        yield Text(found.detail, style="dim")
    yield Text()


def _findings(run: RunSummary) -> Iterator[RenderableType]:
    """Yield the costliest bottlenecks, each once with all modes that have it; the page has them all."""
    found = diagnosis.by_rule(diagnosis.parts(run).costly)
    for of_rule in found[: diagnosis.MOST_FIRST]:
        first = of_rule[0]
        yield Text(f"\N{BULLET} {first.title}", style=_STYLES[diagnosis.SEVERITY_TONES[first.severity]])
        yield from (Padding(line, (0, 0, 0, 2)) for line in _by_mode(of_rule))
    if len(found) > diagnosis.MOST_FIRST:
        yield Text(f"The report has {units.count(len(found) - diagnosis.MOST_FIRST, 'more bottleneck')}.", style="dim")
    if found:
        yield Text()


def _by_mode(findings: Sequence[Finding]) -> Iterator[Text]:
    """Yield cost and status in each mode, and what to do there; what is the same for several modes once."""
    for remedy, same in itertools.groupby(findings, lambda finding: (finding.remedy, finding.code)):
        for finding in same:
            yield Text(f"{mode_label(finding.mode)}: {diagnosis.cost_words(finding)}, {finding.status}", style="dim")
        yield from (Text(line) for line in remedy if line)


def _table(run: RunSummary) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("mode", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for title in _NUMERIC:
        # On a narrow terminal an interval takes two lines; no figure is ever cut.
        table.add_column(title, justify="right", no_wrap=title not in _WITH_INTERVAL)
    for name, mode in run.modes.items():
        withheld = standing.why_withheld(mode) is not None
        status = "failed" if withheld and mode.status == "ok" else mode.status
        head = (
            _two_lines(name, clauses.ranks(mode)),
            Text(status, style=_STYLES[status_tone(status)]),
        )
        table.add_row(*head, *([NOTHING] * len(_NUMERIC) if withheld else _figures(name, mode)))
    return table


def _figures(name: str, mode: ModeSummary) -> list[Text]:
    """Return the cells of a mode's figures. The page has every interval; here there is room for the two that decide."""
    linear = clauses.linear(mode)
    compared = not standing.is_baseline(name) and mode.status != "inactive"
    return [
        _two_lines(figure_text(mode.throughput).removesuffix(" samples/s"), short_interval(mode.throughput)),
        Text(figure_text(mode.step)),
        _two_lines(figure_text(mode.speedup), short_interval(mode.speedup)) if compared else Text(NOTHING),
        Text(figure_text(linear) if compared and linear else NOTHING),
        Text(figure_text(mode.epoch_s)),
        _two_lines(batch_text(mode.batch.global_), f"{batch_text(mode.batch.per_device)} each"),
    ]


def _two_lines(above: str, below: str) -> Text:
    text = Text(above)
    return text.append(f"\n{below}", style="dim") if below else text


def _notes(run: RunSummary) -> Iterator[RenderableType]:
    shown = standing.shown_modes(run)
    intervals = interval_words(shown)
    if intervals:
        yield Text(intervals, style="dim")
    epochs = ((mode_label(name), mode.epoch_s.reason) for name, mode in shown.items() if mode.throughput.value)
    for reason, labels in by_reason((label, reason) for label, reason in epochs if reason).items():
        yield Text(f"Epoch of {labels}: {sentence(reason)}", style="dim")
    yield Text("Throughput is global samples per second; it is not time to accuracy.", style="dim")


def _late(analysis: Analysis) -> Iterator[RenderableType]:
    yield from (Text(f"\n{text}", style="yellow") for text in trace_verdict.stragglers(analysis))


def _troubles(run: RunSummary) -> Iterator[RenderableType]:
    yield from (Text(f"\n{text}") for text in verdict.unmeasured(run))
    for name, mode in run.modes.items():
        if standing.why_withheld(mode) is None and mode.status == "ok":
            continue
        found = verdict.mode_verdict(name, mode)
        yield Text(f"\n{found.sentence}", style=_STYLES[found.tone])
        if mode.stderr_tail:
            yield Padding(Text("\n".join(mode.stderr_tail)), (0, 0, 0, 2))


def _remarks(run: RunSummary) -> Iterator[RenderableType]:
    """Yield each remark on the adoption once, with the modes that it holds for."""
    found = remarks(run.modes)
    if found:
        yield Text("\nHow the script was adopted", style="bold")
    for remark, labels in found.items():
        yield Padding(Text(f"{labels}: {remark}"), (0, 0, 0, 2))


def _files(run: RunSummary) -> Iterator[RenderableType]:
    paths = {file.path for mode in run.modes.values() if mode.adoption for file in mode.adoption.written}
    if paths:
        yield Text(f"\n{left_alone(len(paths))}; the report lists them. --allow-writes lets it.", style="dim")
