"""Are the samples of one mode as large as another's? Where they are not, samples per second are no speedup.

A script may go over to larger images or longer sequences in mid-run, which modes reach at other times, or have batches
of many lengths, of which a mode measured too few.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpdoctor import units
from dpdoctor.analysis.base.launches import LaunchFacts
from dpdoctor.spec import BASELINE

# Means that differ by less are taken for those of the same samples.
MOST_APART = 1.2
OTHER_SIZES = (
    "a sample holds {} numbers in the measured steps of {}, and {} in those of {}, as where a script goes over to "
    "larger ones or has many sizes: give a --time-budget, or --warmup, with which both measure the same"
)


def why_other_sizes(name: str, speaking: Mapping[str, LaunchFacts]) -> str | None:
    """Return why samples of a mode are no samples of the baseline's; None: they are, or it is not known."""
    ours, alone = (_numbers_per_sample(speaking.get(of)) for of in (name, BASELINE))
    if ours is None or alone is None or max(ours, alone) <= MOST_APART * min(ours, alone):
        return None
    return OTHER_SIZES.format(units.whole(round(ours)), name, units.whole(round(alone)), BASELINE)


def _numbers_per_sample(launch: LaunchFacts | None) -> float | None:
    """Return the mean elements of a sample in what models are called with first; None where a step tells none."""
    windows = launch.windows() if launch is not None else ()
    steps = [step for window in windows for rank in window.ranks for step in rank.steady]
    found = [(step.elements, step.samples_drawn or step.samples_entered) for step in steps]
    if not found or not all(elements and samples for elements, samples in found):
        return None
    return sum(elements for elements, _ in found) / sum(samples for _, samples in found)
