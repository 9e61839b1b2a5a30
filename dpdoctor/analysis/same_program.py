"""Two modes that run the same program: how far they lie apart is what launches of this run differ by.

nn.DataParallel without a GPU calls the plain module, so that the mode does what the baseline did, as long as it did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.figure import Figure
from dpdoctor.analysis.base.summary import ModeSummary, why_unlike_steps
from dpdoctor.spec import BASELINE

# A smaller difference is not worth a word.
NOTABLE = 0.02


def spread(modes: Mapping[str, ModeSummary]) -> float:
    """Return by how much these launches differ beyond what their windows do, relative; 0: not at all, or unknown."""
    same = _inactive(modes)
    if same is None:
        return 0.0
    ratio = stats.ratio(modes[same].throughput, modes[BASELINE].throughput, "ratio")
    if ratio.value is None or ratio.high is None:
        return 0.0
    return math.sqrt(max(0.0, (ratio.value - 1) ** 2 - stats.half_width(ratio) ** 2))


def widened(modes: Mapping[str, ModeSummary]) -> dict[str, ModeSummary]:
    """Return the modes with rates whose intervals hold what launches of one program differ by in this run.

    Shares of a step are of one launch, and stay as they are.
    """
    apart = spread(modes)
    if not apart:
        return dict(modes)
    return {
        name: replace(
            mode,
            throughput=_wider(mode.throughput, apart),
            throughput_all_steps=_wider(mode.throughput_all_steps, apart),
            epoch_s=_wider(mode.epoch_s, apart),
        )
        for name, mode in modes.items()
    }


def words(modes: Mapping[str, ModeSummary]) -> str:
    """Return what the two launches tell of this run; empty: nothing that is worth a word."""
    same, apart = _inactive(modes), spread(modes)
    if same is None or apart < NOTABLE:
        return ""
    hold = "intervals of rates and speedups hold that, and " if modes[BASELINE].throughput.scope == "run" else ""
    return (
        f"{BASELINE} and {same} ran the same program and differ by {units.share(apart)} more than their windows do: "
        f"{hold}smaller differences between modes are no differences"
    )


def _wider(figure: Figure, apart: float) -> Figure:
    """Return a figure whose interval is wider, and says no more than before: two launches are no calibration."""
    return replace(stats.calibrated(figure, apart), scope=figure.scope)


def _inactive(modes: Mapping[str, ModeSummary]) -> str | None:
    if BASELINE not in modes or modes[BASELINE].status != "ok":
        return None
    found = ((name, mode) for name, mode in modes.items() if mode.status == "inactive")
    return next((name for name, mode in found if why_unlike_steps(mode, modes[BASELINE]) is None), None)
