"""What switching something off gains, run beside run."""

from __future__ import annotations

from collections.abc import Sequence

from dpdoctor.analysis.comparison import Comparison
from dpdoctor.report.blocks import Block, Paragraph, View
from dpdoctor.report.comparison import rows
from dpdoctor.report.comparison.tables import figure_table

MEANING = (
    "An ablation switches something off in windows between the full ones; its gain is the time that this takes of a "
    "step. A smaller gain means that less time is lost to it."
)


def build(comparison: Comparison) -> Sequence[Block]:
    """Return the gains as a table; nothing where no run knows one."""
    every = rows.of_modes(comparison, rows.ablation_rows)
    if not every:
        return []
    return [figure_table(comparison, "Seconds per step that each ablation gains.", every), Paragraph(text=MEANING)]


VIEW: View[Comparison] = View(name="ablations", title="What ablations gain", build=build)
