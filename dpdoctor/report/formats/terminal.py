"""The report for a terminal: the first screen, on 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dpdoctor.analysis import Diagnosis, RunSummary
from dpdoctor.report.documents import brief
from dpdoctor.report.formats import trace_terminal
from dpdoctor.report.formats.literal import literal
from dpdoctor.report.text import NOTHING, capital, figure_text, left_alone, remarks, run_title, sentence
from dpdoctor.report.traces import verdict as trace_verdict
from dpdoctor.report.traces.traced import is_trace_run
from dpdoctor.report.words.first_screen import FirstScreen, ModeRow, Opportunity, first_screen, percent, span
from dpdoctor.report.words.step_parts import COMMUNICATION, COMPUTE, DATA, OTHER

_STYLES = {"plain": "bold", "good": "bold green", "warn": "bold yellow", "bad": "bold red", "muted": "dim"}
_INDENTED, _HANGING = (0, 0, 0, 2), (0, 0, 0, 4)
_PARTS = {DATA: "data", COMPUTE: "comp", COMMUNICATION: "comm", OTHER: "other"}


def summary(analysis: Diagnosis) -> RenderableType:
    """Return what bounds the run, what to do first, the modes, the opportunities, what failed, and the limits.

    Of a run made of traces alone: the verdict, a table of the devices, and the opportunities.

    All text from the run is literal: rich's markup in it is not interpreted, and it does not command the terminal.
    """
    run = analysis.summary
    screen = first_screen(run)
    if is_trace_run(analysis):
        return Group(trace_terminal.summary(analysis), *_opportunities(screen))
    return Group(
        *_answer(analysis, screen),
        *_modes(screen),
        *_opportunities(screen),
        *_troubles(run),
        *_limits(analysis, screen),
        *_remarks(run),
        *_files(run),
    )


def _answer(analysis: Diagnosis, screen: FirstScreen) -> Iterator[RenderableType]:
    yield literal(f"dpdoctor  {run_title(analysis)}", "dim")
    yield Text()
    said = literal(f"{screen.bound_by.upper()}  ", _STYLES[screen.tone]) if screen.bound_by else Text()
    yield said.append_text(literal(screen.answer, "bold" if screen.bound_by else _STYLES[screen.tone]))
    if screen.do_first:
        yield literal("Do first  ", "bold").append_text(literal(screen.do_first))


def _modes(screen: FirstScreen) -> Iterator[RenderableType]:
    """Yield a row for each mode with figures, then why the others have none."""
    measured = [row for row in screen.modes if row.step is not None]
    if not measured:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("mode", no_wrap=True)
    for title in ("samples/s", "speedup", "eff.", "epoch", "step", *_PARTS.values()):
        # On a narrow terminal an interval takes two lines; no figure is ever cut.
        table.add_column(title, justify="right", no_wrap=title not in ("samples/s", "speedup"))
    for row in measured:
        table.add_row(literal(row.name), *_figures(row))
    yield Text()
    yield table
    yield from (literal(f"{row.name}: {row.note}", "dim") for row in screen.modes if row.status == "inactive")


def _figures(row: ModeRow) -> list[Text]:
    shares = {part.key: percent(part.share) for part in row.parts if part.share}
    rate = figure_text(row.throughput).removesuffix(" samples/s") if row.throughput else NOTHING
    return [
        _beside(rate, row.interval),
        _beside(figure_text(row.speedup), span(row.speedup)) if row.speedup else literal(row.note or NOTHING, "dim"),
        literal(NOTHING if row.efficiency is None or row.efficiency.value is None else percent(row.efficiency.value)),
        literal(figure_text(row.epoch) if row.epoch else NOTHING),
        literal(figure_text(row.step) if row.step else NOTHING),
        *(literal(shares.get(key, NOTHING)) for key in _PARTS),
    ]


def _beside(figure: str, interval: str) -> Text:
    text = literal(figure)
    return text.append_text(literal(f" {interval}", "dim")) if interval else text


def _opportunities(screen: FirstScreen) -> Iterator[RenderableType]:
    if screen.opportunities:
        yield literal("\nOPPORTUNITIES, the largest gain in throughput first; gains do not add up", "bold")
    for number, found in enumerate(screen.opportunities, 1):
        yield from _opportunity(number, found)
    if screen.num_more:
        yield literal(f"The report has {screen.num_more} more.", "dim")


def _opportunity(number: int, found: Opportunity) -> Iterator[RenderableType]:
    head = literal(f"{number}. {found.title}")
    gain = f"{figure_text(found.gain)}, {found.basis}" if found.gain else found.basis
    yield head.append_text(literal(f"  {gain}", "bold"))
    yield Padding(literal(" \N{MIDDLE DOT} ".join(found.modes), "dim"), _HANGING, expand=False)
    at = f"{found.line}  " if found.line else ""
    told = found.code or found.remedy
    if told:
        yield Padding(literal(f"{at}{told}"), _HANGING, expand=False)


def _troubles(run: RunSummary) -> Iterator[RenderableType]:
    for trouble in brief.of_modes(run):
        if trouble.tone != "muted":
            yield literal(f"\n{trouble.sentence}", _STYLES[trouble.tone])
        if trouble.lines:
            yield Padding(literal("\n".join(trouble.lines)), _INDENTED, expand=False)


def _limits(analysis: Diagnosis, screen: FirstScreen) -> Iterator[RenderableType]:
    late = trace_verdict.stragglers(analysis)
    told = [*screen.limits, *late]
    if told:
        yield literal("\nLIMITS", "bold")
    yield from (literal(f"! {text}", "dim") for text in told)


def _remarks(run: RunSummary) -> Iterator[RenderableType]:
    """Yield each remark on the conversion once, with the modes that it holds for."""
    yield from (
        literal(f"! {labels}: {sentence(capital(remark))}", "dim") for remark, labels in remarks(run.modes).items()
    )


def _files(run: RunSummary) -> Iterator[RenderableType]:
    paths = {file.path for mode in run.modes.values() if mode.conversion for file in mode.conversion.written}
    if paths:
        yield literal(f"! {left_alone(len(paths))}; the report lists them. --allow-writes lets it.", "dim")
