"""The terminal's summary of a run made of traces alone: the verdict, and a row per device."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dpdoctor import units
from dpdoctor.analysis import Analysis
from dpdoctor.digest import DeviceDigest
from dpdoctor.report.text import NOTHING, printable, sentence
from dpdoctor.report.traces import verdict as trace_verdict
from dpdoctor.report.traces.spent import spent
from dpdoctor.report.traces.traced import TracedMode, device_words, traced_modes
from dpdoctor.report.traces.words import PART_WORDS, event_words, seconds

_HEADS = {"compute": "compute", "exposed_comm": "exposed comm", "h2d": "h2d", "copy": "copy", "idle": "idle"}
# A terminal shows as many; the page has all.
MOST_ROWS = 40


def summary(analysis: Analysis) -> RenderableType:
    """Return the verdict, the table of devices and what must be known of it; text of a trace is literal."""
    found = trace_verdict.headline(analysis)
    modes = traced_modes(analysis)
    lines = [_printable(found.sentence, "bold"), _printable(found.detail, "dim"), Text()]
    return Group(*lines, *(part for mode in modes for part in _mode(mode)), *_unreadable(analysis))


def _mode(mode: TracedMode) -> Iterator[RenderableType]:
    rows = [(rank.name, device) for rank in mode.ranks for device in rank.digest.devices if device.whole.total_ns]
    if rows:
        yield _table(rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        yield Text(f"{units.whole(len(rows) - MOST_ROWS)} more are in the report.", style="dim")
    yield from _remarks(mode)


def _unreadable(analysis: Analysis) -> Iterator[Text]:
    for mode in analysis.summary.modes.values():
        if mode.stderr_tail:
            number = units.count(len(mode.stderr_tail), "trace")
            yield Text(f"\n{number} could not be read; the report has the reasons.", style="bold red")


def _table(rows: list[tuple[str, DeviceDigest]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("rank")
    table.add_column("device", no_wrap=True)
    for title in (*(_HEADS[part] for part in PART_WORDS), "total", "overlap"):
        table.add_column(title, justify="right", no_wrap=title != "exposed comm")
    for name, device in rows:
        table.add_row(_printable(name), device_words(device), *_figures(device))
    return table


def _figures(device: DeviceDigest) -> Iterator[str]:
    """Yield shares of the whole steps, or of the whole trace where there is none, the time per step and the overlap."""
    found = spent([device])
    yield from (units.share(found.ratio(part)) for part in PART_WORDS)
    yield f"{seconds(found.total_ns / found.num_steps)}/step" if found.num_steps else seconds(found.total_ns)
    yield NOTHING if found.overlap_ratio is None else units.share(found.overlap_ratio)


def _remarks(mode: TracedMode) -> Iterator[Text]:
    """Yield damage and notes of the traces, single late steps beside a pattern, and what was not compared."""
    for rank in mode.ranks:
        if rank.digest.damage:
            yield _printable(f"\n{rank.name} was read in part: {sentence(rank.digest.damage)}", "bold yellow")
        yield from (_printable(f"{rank.name}: {sentence(note)}", "dim") for note in rank.digest.notes)
    if mode.across.verdict.kind != "single":
        yield from (Text(sentence(f"Besides, {event_words(event)}")) for event in mode.across.verdict.events)
    yield from (_printable(sentence(note), "dim") for note in mode.across.notes)


def _printable(text: str, style: str = "") -> Text:
    """Return text of a trace without the characters that would command the terminal."""
    return Text(printable(text), style=style)
