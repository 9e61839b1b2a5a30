"""A comparison for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dpdoctor.analysis.comparison import Comparison
from dpdoctor.redact import printable
from dpdoctor.report.comparison import verdict
from dpdoctor.report.comparison.remarks import remarks
from dpdoctor.report.comparison.rows import (
    Row,
    change_interval,
    change_text,
    change_tone,
    counter_lines,
    decisive_rows,
    finding_lines,
)
from dpdoctor.report.comparison.words import against
from dpdoctor.report.formats.console import literal
from dpdoctor.report.text import figure_text, mode_label, short_interval

_STYLES = {"plain": "bold", "good": "bold green", "warn": "bold yellow", "bad": "bold red"}
_CELL_STYLES = {"plain": "", "good": "green", "bad": "red"}


def render(comparison: Comparison) -> RenderableType:
    """Return the verdicts, what they rest on, the figures that decide or changed, findings, counters and remarks.

    Text from the runs is literal: rich's markup in it is not interpreted, and control characters are shown.
    """
    rows, left_out = decisive_rows(comparison)
    return Group(
        *_verdicts(comparison),
        *_runs(comparison),
        *([_table(comparison, rows)] if rows else []),
        *([Text(left_out, style="dim")] if left_out else []),
        *_lines("Findings", finding_lines(comparison)),
        *_lines("Counters of one step", counter_lines(comparison)),
        *_lines("What else differs", (f"{remark.title}: {remark.text}" for remark in remarks(comparison))),
        Text(f"\n{verdict.evidence(comparison)} {verdict.chance(comparison)}".rstrip(), style="dim"),
    )


def _verdicts(comparison: Comparison) -> Iterator[Text]:
    for found in verdict.verdicts(comparison):
        yield literal(found.sentence, _STYLES[found.tone])
        if found.detail:
            yield literal(found.detail, "dim")
    yield Text()


def _runs(comparison: Comparison) -> Iterator[Text]:
    for place, run in enumerate(comparison.runs):
        base = "" if place else " (the base)"
        yield literal(f"{run.label}: {run.path}, {run.created}{base}")
    yield Text()


def _table(comparison: Comparison, rows: Iterable[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("figure", overflow="fold")
    for title in (*(run.label for run in comparison.runs), *against(comparison)):
        table.add_column(title, justify="right", overflow="fold")
    for row in rows:
        figures = (_two_lines(figure_text(figure), short_interval(figure)) for figure in row.compared.figures)
        changes = (
            _two_lines(change_text(row, change), change_interval(row, change), _CELL_STYLES[change_tone(row, change)])
            for change in row.compared.changes
        )
        table.add_row(_two_lines(row.what, printable(mode_label(row.mode))), *figures, *changes)
    return table


def _two_lines(above: str, below: str, style: str = "") -> Text:
    text = Text(above, style=style)
    return text.append(f"\n{below}", style="dim") if below else text


def _lines(title: str, lines: Iterable[str]) -> Iterator[RenderableType]:
    found = [Padding(literal(line), (0, 0, 0, 2)) for line in lines]
    if found:
        yield Text(f"\n{title}", style="bold")
        yield from found
