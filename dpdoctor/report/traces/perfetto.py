"""The way from the report to the traces in Perfetto."""

from __future__ import annotations

from collections.abc import Iterator

from dpdoctor.analysis import Diagnosis
from dpdoctor.analysis.launch_facts import shown
from dpdoctor.report.blocks import Perfetto
from dpdoctor.report.text import mode_label, run_title
from dpdoctor.report.traces.timeline import timeline
from dpdoctor.report.traces.traced import traced_modes

TIMELINE = "timeline.json.gz"
# A page carries the timeline of all ranks up to so many calls; a larger one is picked.
MOST_CALLS = 10_000
# More paths than these are not listed; the others are named alike.
MOST_FILES = 8


def perfetto(analysis: Diagnosis) -> Perfetto:
    """Return the traces of a run, that of all ranks carried in the page where it is small."""
    ranks = [rank for mode in traced_modes(analysis) for rank in mode.ranks]
    calls = sum(len(rank.digest.calls.begin_ns) for rank in ranks)
    files = list(_files(analysis))
    return Perfetto(
        title=f"{run_title(analysis)}, {analysis.summary.created}",
        events=tuple(timeline(analysis)) if calls <= MOST_CALLS else (),
        files=(f"all ranks: {TIMELINE}", *files[:MOST_FILES]),
        num_more=max(0, len(files) - MOST_FILES),
    )


def _files(analysis: Diagnosis) -> Iterator[str]:
    """Yield which rank's trace lies where, seen from the report."""
    for mode in traced_modes(analysis):
        for rank in shown(analysis.run.modes[mode.mode]).ranks:
            if rank.trace is not None and rank.trace.is_relative_to(analysis.run.path):
                yield f"{mode_label(mode.mode)}, rank {rank.index}: {rank.trace.relative_to(analysis.run.path)}"
