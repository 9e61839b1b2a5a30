"""The first screen: how each run stands to the first, what else differs, throughput and step of every mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpdoctor.analysis.comparison import Comparison
from dpdoctor.report.blocks import Block, Callout, Cell, Column, Paragraph, Table, View
from dpdoctor.report.comparison import rows, verdict
from dpdoctor.report.comparison.remarks import NOT_ACCURACY, remarks
from dpdoctor.report.comparison.tables import LONGEST_VALUE, figure_table
from dpdoctor.report.text import name_cell, sentence

COLUMNS = (Column(title="Run"), Column(title="Directory"), Column(title="Created"))


def build(comparison: Comparison) -> Sequence[Block]:
    """Return the verdicts, what they rest on, the figures that decide and which runs these are."""
    main = rows.of_modes(comparison, rows.main_rows)
    return [
        *verdict.verdicts(comparison),
        Paragraph(text=verdict.evidence(comparison)),
        *([figure_table(comparison, "What each run gives, with 95 % intervals.", main)] if main else []),
        *_remarks(comparison),
        _runs(comparison),
    ]


def _remarks(comparison: Comparison) -> Iterator[Block]:
    found = remarks(comparison)
    for remark in found:
        if remark.grave:
            yield Callout(tone="warn", title=remark.title, text=remark.text)
        else:
            yield Paragraph(text=sentence(f"{remark.title}: {remark.text}"))
    if not any(NOT_ACCURACY in remark.text for remark in found):
        yield Paragraph(text="Throughput is global samples per second; it is not time to accuracy.")


def _runs(comparison: Comparison) -> Table:
    return Table(
        caption="What is compared; the first run is the base.",
        columns=COLUMNS,
        rows=tuple(
            (
                Cell(text=run.label, note="" if place else "the base"),
                name_cell(run.path, LONGEST_VALUE),
                Cell(text=run.created, note=f"dpdoctor {run.dpdoctor}"),
            )
            for place, run in enumerate(comparison.runs)
        ),
    )


VIEW: View[Comparison] = View(name="overview", title="Verdict", build=build)
