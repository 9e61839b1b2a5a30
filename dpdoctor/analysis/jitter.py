"""What ranks cost each other that are late now and then, told from windows in which none waits for another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdoctor.analysis import stats
from dpdoctor.analysis.ablation import pairs
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.launch_facts import LaunchFacts
from dpdoctor.analysis.windows import NS, Window


def jitter_wait(launches: Sequence[LaunchFacts], ablation: str) -> Figure:
    """Return the share of a full step that waiting for whoever is last takes beyond waiting for the slowest rank.

    Of an ablation that leaves each rank a pace of its own. Would ranks meet in every step s, it took E[max_r w_r(s)],
    where rank r takes w_r(s) by itself; were each as even as its mean, max_r E[w_r].
    """
    found = [
        (lost, full.seconds_per_step)
        for launch in launches
        for full, without in pairs(launch, ablation)
        if (lost := _lost_s(without)) is not None
    ]
    return stats.ratio_of_totals(found, "ratio", reason=f"no window of {ablation} has steps that all ranks took")


def _lost_s(window: Window) -> float | None:
    by_rank = [{step.step: step.duration_ns * NS for step in rank.steady} for rank in window.ranks]
    common = sorted(set.intersection(*(set(steps) for steps in by_rank)))
    if len(by_rank) < 2 or not common:
        return None
    seconds = np.array([[steps[number] for number in common] for steps in by_rank])
    return float(seconds.max(axis=0).mean() - seconds.mean(axis=1).max())
