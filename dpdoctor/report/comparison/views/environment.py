"""What the runs ran on, what differs in it, and how to run them again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from dpdoctor.analysis.comparison import Comparison
from dpdoctor.report.blocks import Block, Fold, Lines, Paragraph, View
from dpdoctor.report.comparison.tables import fact_table
from dpdoctor.report.comparison.words import differing

OF_TRACES = (
    "Of a run made of traces these are the machine and versions that read them, not those that were traced; its script "
    "is where the traces lie."
)


def build(comparison: Comparison) -> Sequence[Block]:
    """Return what differs, what does not behind a fold, and each run's command."""
    commands = [Lines(caption=f"How {run.label} was made", lines=(shlex.join(run.command),)) for run in comparison.runs]
    return [*_facts(comparison), *commands]


def _facts(comparison: Comparison) -> Iterator[Block]:
    others = differing(comparison.environment)
    alike = [fact for fact in comparison.environment if fact not in others]
    if any(run.of_traces for run in comparison.runs):
        yield Paragraph(text=OF_TRACES)
    if others:
        yield fact_table(comparison, "What differs.", others)
    else:
        yield Paragraph(text="Script, arguments, machine and versions are not known to differ.")
    yield Fold(
        title="What does not differ or is not known of all runs", blocks=(fact_table(comparison, "The rest.", alike),)
    )


VIEW: View[Comparison] = View(name="environment", title="Environment", build=build)
