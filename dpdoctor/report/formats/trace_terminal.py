"""The terminal's summary of a run made of traces alone: the verdict, and a row per device."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dpdoctor.analysis import Diagnosis
from dpdoctor.report.formats.console import literal
from dpdoctor.report.traces.traced import TracedMode, traced_modes
from dpdoctor.report.traces.words import (
    FIRST_FIGURE,
    HEADS,
    device_rows,
    devices_left_out,
    late_steps,
    read_in_part,
    reading_notes,
    trace_headline,
    unreadable,
)


def summary(analysis: Diagnosis) -> RenderableType:
    """Return the verdict, the table of devices and what must be known of it; text of a trace is literal."""
    found = trace_headline(analysis)
    modes = traced_modes(analysis)
    lines = [literal(found.sentence, "bold"), literal(found.detail, "dim"), Text()]
    return Group(*lines, *(part for mode in modes for part in _mode(mode)), *_unreadable(analysis))


def _mode(mode: TracedMode) -> Iterator[RenderableType]:
    rows, more = device_rows(mode), devices_left_out(mode)
    if rows:
        yield _table(rows)
    if more:
        yield literal(more, "dim")
    yield from _remarks(mode)


def _unreadable(analysis: Diagnosis) -> Iterator[Text]:
    for clause, _ in unreadable(analysis.summary):
        yield literal(f"\n{clause}; the report has the reasons.", "bold red")


def _table(rows: list[tuple[str, ...]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column(HEADS[0])
    table.add_column(HEADS[1], no_wrap=True)
    for title in HEADS[FIRST_FIGURE:]:
        table.add_column(title, justify="right", no_wrap=" " not in title)
    for row in rows:
        table.add_row(*map(literal, row))
    return table


def _remarks(mode: TracedMode) -> Iterator[Text]:
    yield from (literal(f"\n{text}", "bold yellow") for text in read_in_part(mode))
    yield from (literal(text, "dim") for text in reading_notes(mode))
    yield from (literal(text) for text in late_steps(mode))
