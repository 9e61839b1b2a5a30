"""What else measurably changed: every figure whose interval leaves out that nothing did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpdoctor.analysis.comparison import Comparison
from dpdoctor.report.blocks import Block, Callout, Paragraph, View
from dpdoctor.report.comparison import rows, verdict
from dpdoctor.report.comparison.tables import figure_table
from dpdoctor.report.comparison.words import against

MEANING = (
    "A figure is called changed where the 95 % interval of its change leaves out that there is none. Figures of which "
    "one run has too few values for an interval are never called so; they stand in the sections below."
)


def build(comparison: Comparison) -> Sequence[Block]:
    """Return the figures that changed, besides throughput and step, and how many would by chance."""
    return [*_changed(comparison), Paragraph(text=f"{MEANING} {verdict.chance(comparison)}".rstrip())]


def _changed(comparison: Comparison) -> Iterator[Block]:
    found = rows.changed(rows.secondary_rows(comparison))
    if found:
        yield figure_table(comparison, "Figures that measurably changed, besides throughput and step.", found)
    else:
        text = f"{'; '.join(against(comparison))}: phases, time breakdown, ablations and the other figures."
        yield Callout(tone="plain", title="Nothing else is measurably different", text=text)


VIEW: View[Comparison] = View(name="changes", title="What changed", build=build)
