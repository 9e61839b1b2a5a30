"""The terminal's summary of a run made of traces alone: the verdict, and a row per device."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dpdoctor.analysis import Diagnosis
from dpdoctor.report.formats.console import literal
from dpdoctor.report.traces import remarks
from dpdoctor.report.traces import verdict as trace_verdict
from dpdoctor.report.traces.remarks import FIRST_FIGURE, HEADS, device_rows, left_to_the_report
from dpdoctor.report.traces.traced import TracedMode, traced_modes


def summary(analysis: Diagnosis) -> RenderableType:
    """Return the verdict, the table of devices and what must be known of it; text of a trace is literal."""
    found = trace_verdict.headline(analysis)
    modes = traced_modes(analysis)
    lines = [literal(found.sentence, "bold"), literal(found.detail, "dim"), Text()]
    return Group(*lines, *(part for mode in modes for part in _mode(mode)), *_unreadable(analysis))


def _mode(mode: TracedMode) -> Iterator[RenderableType]:
    rows, more = device_rows(mode), left_to_the_report(mode)
    if rows:
        yield _table(rows)
    if more:
        yield literal(more, "dim")
    yield from _remarks(mode)


def _unreadable(analysis: Diagnosis) -> Iterator[Text]:
    for clause, _ in remarks.unreadable(analysis.summary):
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
    yield from (literal(f"\n{text}", "bold yellow") for text in remarks.damage(mode))
    yield from (literal(text, "dim") for text in remarks.notes(mode))
    yield from (literal(text) for text in remarks.comparison(mode))
