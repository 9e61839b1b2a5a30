"""Tables of a comparison: a column for each run, and one for each change."""

from __future__ import annotations

from collections.abc import Sequence

from dpdoctor.analysis.comparison import Comparison, Fact
from dpdoctor.report.blocks import Cell, Column, Table
from dpdoctor.report.comparison.rows import Row, change_interval, change_text, change_tone
from dpdoctor.report.comparison.words import against, fact_words, value_text
from dpdoctor.report.text import figure_cell, mode_label, name_cell

LONGEST_VALUE = 60


def figure_table(comparison: Comparison, caption: str, rows: Sequence[Row]) -> Table:
    """Return figures with their intervals, and the changes; there is at least one row."""
    return Table(
        caption=caption,
        columns=(
            Column(title="Figure"),
            *(Column(title=run.label, numeric=True) for run in comparison.runs),
            *(Column(title=title, numeric=True) for title in against(comparison)),
        ),
        rows=tuple(_figure_row(row) for row in rows),
    )


def fact_table(comparison: Comparison, caption: str, facts: Sequence[Fact]) -> Table:
    """Return what is known without error, one row each."""
    return Table(
        caption=caption,
        columns=(Column(title="What"), *(Column(title=run.label) for run in comparison.runs)),
        rows=tuple(
            (
                Cell(text=fact_words(fact.name)),
                *(name_cell(value_text(fact, value), LONGEST_VALUE) for value in fact.values),
            )
            for fact in facts
        ),
    )


def _figure_row(row: Row) -> tuple[Cell, ...]:
    changes = (
        Cell(text=change_text(row, change), note=change_interval(row, change), tone=change_tone(row, change))
        for change in row.compared.changes
    )
    return (
        Cell(text=row.what, note=mode_label(row.mode)),
        *(figure_cell(figure) for figure in row.compared.figures),
        *changes,
    )
