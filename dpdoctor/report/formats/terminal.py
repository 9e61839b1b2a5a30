"""The report for a terminal: the same facts as the page's first screen."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dpdoctor.analysis import Analysis, ModeSummary, RunSummary
from dpdoctor.report.formats.literal import literal
from dpdoctor.report.text import (
    NOTHING,
    THROUGHPUT_WORDS,
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
from dpdoctor.report.words import brief, clauses, standing, verdict
from dpdoctor.report.words.costliest import Treatment, costliest, left_to_the_report

_STYLES = {"plain": "bold", "good": "bold green", "warn": "bold yellow", "bad": "bold red", "muted": "dim"}
_NUMERIC = ("samples/s", "step", "speedup", "linear", "epoch", "batch")
_WITH_INTERVAL = ("samples/s", "speedup")
_INDENTED = (0, 0, 0, 2)


def summary(analysis: Analysis) -> RenderableType:
    """Return the verdict, the costliest findings, a table of the modes, what failed with its last stderr lines, remarks
    and files left alone.

    Of a run made of traces alone: the verdict and a table of the devices.

    All text from the run is literal: rich's markup in it is not interpreted, and it does not command the terminal.
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
    yield literal(found.sentence, _STYLES[found.tone])
    if found.detail:
        yield literal(found.detail, "dim")
    yield Text()


def _findings(run: RunSummary) -> Iterator[RenderableType]:
    """Yield the costliest bottlenecks, each once with all modes that have it; the page has them all."""
    found, more = costliest(run), left_to_the_report(run)
    for bottleneck in found:
        yield literal(f"\N{BULLET} {bottleneck.title}", _STYLES[bottleneck.tone])
        yield from (Padding(line, _INDENTED) for treatment in bottleneck.treatments for line in _treatment(treatment))
    if more:
        yield literal(more, "dim")
    if found:
        yield Text()


def _treatment(treatment: Treatment) -> Iterator[Text]:
    yield from (literal(cost, "dim") for cost in treatment.costs)
    yield from (literal(line) for line in (treatment.remedy, treatment.code) if line)


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
            literal(status, _STYLES[status_tone(status)]),
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
    text = literal(above)
    return text.append_text(literal(f"\n{below}", "dim")) if below else text


def _notes(run: RunSummary) -> Iterator[RenderableType]:
    shown = standing.shown_modes(run)
    intervals = interval_words(shown)
    if intervals:
        yield literal(intervals, "dim")
    epochs = ((mode_label(name), mode.epoch_s.reason) for name, mode in shown.items() if mode.throughput.value)
    for reason, labels in by_reason((label, reason) for label, reason in epochs if reason).items():
        yield literal(f"Epoch of {labels}: {sentence(reason)}", "dim")
    yield literal(THROUGHPUT_WORDS, "dim")


def _late(analysis: Analysis) -> Iterator[RenderableType]:
    yield from (literal(f"\n{text}", "yellow") for text in trace_verdict.stragglers(analysis))


def _troubles(run: RunSummary) -> Iterator[RenderableType]:
    for trouble in brief.troubles(run):
        yield literal(f"\n{trouble.sentence}", _STYLES[trouble.tone])
        if trouble.lines:
            yield Padding(literal("\n".join(trouble.lines)), _INDENTED)


def _remarks(run: RunSummary) -> Iterator[RenderableType]:
    """Yield each remark on the adoption once, with the modes that it holds for."""
    found = remarks(run.modes)
    if found:
        yield Text("\nHow the script was adopted", style="bold")
    for remark, labels in found.items():
        yield Padding(literal(f"{labels}: {remark}"), _INDENTED)


def _files(run: RunSummary) -> Iterator[RenderableType]:
    paths = {file.path for mode in run.modes.values() if mode.adoption for file in mode.adoption.written}
    if paths:
        yield literal(f"\n{left_alone(len(paths))}; the report lists them. --allow-writes lets it.", "dim")
