"""A run for a terminal: the first screen, on 80 columns and a usual run on 26 lines; of traces alone a row per device.

And what `profile --explain` prints: what was done to the script in each mode, and whether it took effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from dpdoctor import units
from dpdoctor.analysis import Conversion, Diagnosis, ModeSummary, RunSummary
from dpdoctor.report.documents import brief
from dpdoctor.report.formats.console import Wrapped, literal, wrapped
from dpdoctor.report.text import (
    NOTHING,
    capital,
    clipped,
    figure_text,
    left_alone,
    remarks,
    run_title,
    sampler_text,
    sentence,
    short_interval,
)
from dpdoctor.report.traces.traced import TracedMode, is_trace_run, traced_modes
from dpdoctor.report.traces.words import (
    FIRST_FIGURE,
    HEADS,
    device_rows,
    devices_left_out,
    late_steps,
    read_in_part,
    reading_notes,
    stragglers,
    trace_headline,
    unreadable,
)
from dpdoctor.report.words import standing, verdict
from dpdoctor.report.words.first_screen import FirstScreen, ModeRow, first_screen
from dpdoctor.report.words.step_parts import COMMUNICATION, COMPUTE, DATA, OTHER

_STYLES = {"plain": "bold", "good": "bold green", "warn": "bold yellow", "bad": "bold red", "muted": "dim"}
_PARTS = {DATA: "data", COMPUTE: "comp", COMMUNICATION: "comm", OTHER: "other"}
_MODE_HEADS = ("mode", "samples/s", "speedup", "eff.", "step", *_PARTS.values())
# Limits stand on so many lines, they and opportunities on so many characters; the report has all of them.
LIMIT_LINES, LINE = 7, 80
LEGEND = "~ estimated, \N{LESS-THAN OR EQUAL TO} upper bound; gains do not add up"


def summary(analysis: Diagnosis) -> RenderableType:
    """Return what bounds the run, what to do first, the modes, the opportunities, what failed, and the limits.

    Where no mode has figures what failed comes first. Of a run made of traces alone: the verdict, a table of the
    devices, and the opportunities.

    All text from the run is literal: rich's markup in it is not interpreted, and it does not command the terminal.
    """
    run = analysis.summary
    screen = first_screen(run)
    if is_trace_run(analysis):
        return Group(_of_traces(analysis), *_opportunities(screen))
    head = literal(f"dpdoctor  {run_title(analysis)}", "dim")
    if not standing.shown_modes(run):
        return Group(head, *_troubles(run), *_said(screen), *_limits(analysis, screen))
    return Group(
        head,
        *_said(screen),
        *_modes(screen),
        *_opportunities(screen),
        *_troubles(run),
        *_limits(analysis, screen),
    )


def _said(screen: FirstScreen) -> Iterator[RenderableType]:
    label = screen.bound_by.upper()
    style = _STYLES[screen.tone]
    yield Wrapped(
        text=f"{label}  {screen.answer}".strip(),
        head=len(label) if label else len(screen.answer),
        head_style=style,
    )
    if screen.do_first:
        yield Wrapped(text=f"Do first  {screen.do_first}", head=len("Do first"), indent=len("Do first  "))


def _modes(screen: FirstScreen) -> Iterator[RenderableType]:
    """Yield a row for each mode with figures, then why those have none that changed nothing."""
    measured = [row for row in screen.modes if row.step is not None]
    cells = [_MODE_HEADS, *(_figures(row) for row in measured)] if measured else []
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    yield Text()
    for number, row in enumerate(cells):
        yield literal(_line(row, widths), "" if number else "bold")
    for mode in screen.modes:
        if mode.status == "inactive":
            yield Wrapped(text=f"{mode.name}: {mode.note}", style="dim", indent=2)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return a row: names and factors with their intervals begin alike, other figures end alike."""
    first, rate, factor, *others = zip(cells, widths, strict=True)
    aligned = (first[0].ljust(first[1]), rate[0].rjust(rate[1]), factor[0].ljust(factor[1]))
    return "  ".join((*aligned, *(text.rjust(width) for text, width in others)))


def _figures(row: ModeRow) -> tuple[str, ...]:
    shares = {part.key: part.shown for part in row.parts if part.share}
    if any(part.is_bound for part in row.parts):
        shares.setdefault(COMMUNICATION, "unknown")
    efficiency = None if row.efficiency is None else row.efficiency.value
    return (
        row.name,
        figure_text(row.throughput).removesuffix(" samples/s") if row.throughput else NOTHING,
        _factor(row),
        NOTHING if efficiency is None else units.share(efficiency),
        figure_text(row.step) if row.step else NOTHING,
        *(shares.get(key, NOTHING) for key in _PARTS),
    )


def _factor(row: ModeRow) -> str:
    if row.speedup is None:
        return row.note or NOTHING
    interval = short_interval(row.speedup)
    return f"{figure_text(row.speedup)} ({interval})" if interval else figure_text(row.speedup)


def _opportunities(screen: FirstScreen) -> Iterator[RenderableType]:
    """Yield what to change: a row with what it gives in each mode."""
    shown = screen.opportunities
    if not shown:
        return
    modes = [name for name in _names(screen) if any(name in found.gains for found in shown)]
    columns = [[name, *(found.gains.get(name, NOTHING) for found in shown)] for name in modes]
    of_gains = [max(map(len, column)) for column in columns]
    room = LINE - sum(2 + width for width in of_gains)
    titles = ["OPPORTUNITIES", *(clipped(f"{number}. {found.title}", room) for number, found in enumerate(shown, 1))]
    widths = [max(map(len, titles)), *of_gains]
    yield Text()
    for number, row in enumerate(zip(titles, *columns, strict=True)):
        first, *gains = (f"{text:>{width}}" for text, width in zip(row, widths, strict=True))
        line = "  ".join((first.strip().ljust(widths[0]), *gains)).rstrip()
        yield literal(line, "" if number else "bold")
    for number, found in enumerate(shown, 1):
        if found.no_remedy:
            yield Wrapped(text=f"   {number}. {found.no_remedy}", indent=6)
    told = (LEGEND if modes else "", f"{screen.num_more} more in the report" if screen.num_more else "")
    if any(told):
        yield Wrapped(text=f"   {'; '.join(filter(None, told))}", style="dim", indent=3)


def _names(screen: FirstScreen) -> list[str]:
    """Return the modes in their order; those of traces have no rows, but findings."""
    found = (name for opportunity in screen.opportunities for name in opportunity.gains)
    return list(dict.fromkeys((*(row.name for row in screen.modes), *found)))


def _troubles(run: RunSummary) -> Iterator[RenderableType]:
    """Yield what failed or was skipped, each reason with the lines that were printed last."""
    for trouble in brief.of_modes(run, but=("inactive",)):
        yield Text()
        yield Wrapped(text=trouble.sentence, style=_STYLES[trouble.tone])
        for line in trouble.lines:
            yield Wrapped(text=f"  {line}", indent=4)


def _limits(analysis: Diagnosis, screen: FirstScreen) -> Iterator[RenderableType]:
    """Yield what makes a figure doubtful, who was late, what was remarked on the script, and what else it may tell."""
    run = analysis.summary
    told = [
        *screen.limits,
        *stragglers(analysis),
        *(f"{labels}: {sentence(capital(remark))}" for remark, labels in remarks(run.modes).items()),
        *screen.hints,
        *_files(run),
    ]
    # What became of files and figures is told whatever room it takes.
    shown = _fitting(told, at_least=len(list(verdict.limits(run))))
    num_more = len(told) - len(shown)
    if shown:
        yield literal(f"\nLIMITS{f' ({num_more} more in the report)' if num_more else ''}", "bold")
    yield from (Wrapped(text=f"! {text}", style="dim", indent=2) for text in shown)


def _fitting(told: Sequence[str], *, at_least: int) -> Sequence[str]:
    """Return the first of these paragraphs that have room, but for so many that are shown anyway."""
    lines = accumulate(len(wrapped(f"! {text}", LINE, indent=2)) for text in told)
    return told[: max(1, at_least, sum(number <= LIMIT_LINES for number in lines))]


def _files(run: RunSummary) -> Iterator[str]:
    paths = {file.path for mode in run.modes.values() if mode.conversion for file in mode.conversion.written}
    if paths:
        yield f"{left_alone(len(paths))}; the report lists them. --allow-writes lets it."


def _of_traces(analysis: Diagnosis) -> RenderableType:
    """Return the verdict, the table of devices and what must be known of it; text of a trace is literal."""
    found = trace_headline(analysis)
    modes = traced_modes(analysis)
    lines = [literal(found.sentence, "bold"), literal(found.detail, "dim"), Text()]
    return Group(*lines, *(part for mode in modes for part in _traced_mode(mode)), *_unreadable(analysis))


def _traced_mode(mode: TracedMode) -> Iterator[RenderableType]:
    rows, more = device_rows(mode), devices_left_out(mode)
    if rows:
        yield _device_table(rows)
    if more:
        yield literal(more, "dim")
    yield from _trace_remarks(mode)


def _unreadable(analysis: Diagnosis) -> Iterator[Text]:
    for clause, _ in unreadable(analysis.summary):
        yield literal(f"\n{clause}; the report has the reasons.", "bold red")


def _device_table(rows: list[tuple[str, ...]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column(HEADS[0])
    table.add_column(HEADS[1], no_wrap=True)
    for title in HEADS[FIRST_FIGURE:]:
        table.add_column(title, justify="right", no_wrap=" " not in title)
    for row in rows:
        table.add_row(*map(literal, row))
    return table


def _trace_remarks(mode: TracedMode) -> Iterator[Text]:
    yield from (literal(f"\n{text}", "bold yellow") for text in read_in_part(mode))
    yield from (literal(text, "dim") for text in reading_notes(mode))
    yield from (literal(text) for text in late_steps(mode))


_SIGNS = {True: ("holds", "green"), False: ("FAILS", "bold red"), None: ("cannot tell", "yellow")}


def explanation(analysis: Diagnosis) -> RenderableType:
    """Return a tree per mode: modules, loaders, settings, remarks and the proof; text of the run is literal."""
    return Group(*(_conversion(name, mode) for name, mode in analysis.summary.modes.items()))


def _conversion(name: str, mode: ModeSummary) -> Tree:
    tree = Tree(literal(f"{name}: {mode.status}", "bold"))
    if mode.reason:
        tree.add(Wrapped(text=mode.reason, style="bold red"))
    for line in _conversion_lines(mode, mode.conversion) if mode.conversion else ():
        tree.add(line)
    return tree


def _conversion_lines(mode: ModeSummary, conversion: Conversion) -> Iterator[RenderableType]:
    for unit in conversion.modules:
        parameters = f"{units.whole(unit.num_parameters)} parameters"
        yield Wrapped(text=f"module {unit.name} ({parameters}), called at {unit.line}")
        if unit.unused:
            yield literal(f"  without a gradient: {', '.join(unit.unused)}")
    for loader in conversion.loaders:
        size = "" if loader.batch_size is None else f", batch {loader.batch_size}"
        workers = units.count(loader.num_workers, "worker")
        note = f"; {loader.note}" if loader.note else ""
        sampler = sampler_text(loader.sampler)
        yield Wrapped(
            text=f"loader at {loader.line}: {loader.dataset}, {sampler}{size}, {workers}; shared: {loader.rule}{note}"
        )
    if conversion.optimizers:
        yield literal(f"optimizers: {', '.join(conversion.optimizers)}")
    threads = units.count(conversion.num_threads, "thread")
    unused = "; find_unused_parameters on" if conversion.find_unused_parameters else ""
    yield literal(f"{standing.ranks(mode)}, {threads} each, seed {conversion.seed}{unused}")
    if conversion.written:
        yield literal(left_alone(len(conversion.written)))
    yield literal(f"patched: {', '.join(conversion.patched)}", "dim")
    for warning in conversion.warnings:
        yield Wrapped(text=warning, style="yellow")
    for check in conversion.proof:
        sign, style = _SIGNS[check.ok]
        yield Wrapped(text=f"{sign}: {check.text}", head=len(f"{sign}:"), head_style=style)
