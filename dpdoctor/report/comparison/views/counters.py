"""What one step does, counted, run beside run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpdoctor.analysis.comparison import Comparison, ModeComparison
from dpdoctor.report.blocks import Absent, Block, Fold, Paragraph, View
from dpdoctor.report.comparison.tables import fact_table
from dpdoctor.report.comparison.words import differing
from dpdoctor.report.text import mode_label

MEANING = (
    "Counted in one profiled step after warm-up, on one rank. They are the same in every step and on any machine, so "
    "any difference is a change of what the step does. Operators of a dataset count "
    "where the training process fetches its batches itself, not where processes of a loader do."
)


def build(comparison: Comparison) -> Sequence[Block]:
    """Return by mode the counters that differ, and behind a fold those that do not."""
    counted = {name: mode for name, mode in comparison.modes.items() if mode.counters}
    if not counted:
        return [Absent(what="Counters", reason="no run counted a step of a mode that may be compared")]
    blocks = [block for name, mode in counted.items() for block in _mode(comparison, name, mode)]
    return [*blocks, Paragraph(text=MEANING)]


def _mode(comparison: Comparison, name: str, mode: ModeComparison) -> Iterator[Block]:
    label, others = mode_label(name), differing(mode.counters)
    alike = [fact for fact in mode.counters if fact not in others]
    if others:
        yield fact_table(comparison, f"{label}: counters of one step that differ.", others)
    else:
        yield Paragraph(text=f"{label}: no counter of a step is known to differ.")
    if alike:
        table = fact_table(comparison, f"{label}: counters of one step.", alike)
        yield Fold(title=f"{label}: counters that do not differ or are not known of all runs", blocks=(table,))


VIEW: View[Comparison] = View(name="counters", title="Counters", build=build)
