"""What it costs the loader to begin anew: the excess of the steps in which an epoch, or an iterator, begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdoctor.analysis import PHASES, Figure, Rank, StepRecord, stats
from dpdoctor.analysis.windows import NS
from dpdoctor.rules._base import Case, share_beside
from dpdoctor.rules._steps import events_by_step, launches, windows

_DATA_WAIT = PHASES.index("data_wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """The beginnings that were seen in measured windows; steps in which nothing begins are the usual ones.

    Attributes:
        seconds: that the loader takes at one more than in a usual step.
        every: steps from one to the next.
        share: of all time.
    """

    count: int
    seconds: Figure
    every: float
    share: Figure


def edges(case: Case) -> Edges | None:
    """Return what beginnings cost; None: none was seen beside usual steps, or the length of an epoch is not known."""
    parts = [(launch.ranks[i], part) for launch, window in windows(case) for i, part in enumerate(window.ranks)]
    usual = [step for _, part in parts for step in part.counted if not step.epoch_edge]
    if not usual:
        return None
    wait_s, step_s = (float(np.mean(values)) for values in zip(*map(_times, usual), strict=True))
    excess = [
        _excess_s(step, elsewhere.get(step.step, 0.0), wait_s, step_s)
        for rank, part in parts
        for elsewhere in [_evaluations_s(rank)]
        for step in part.counted
        if step.epoch_edge
    ]
    every = (len(usual) + len(excess)) / len(excess) if len(excess) > case.mode.world_size else _steps_per_epoch(case)
    if not excess or every is None:
        return None
    seconds = stats.mean_interval(excess, "s")
    return Edges(count=len(excess), seconds=seconds, every=every, share=share_beside(seconds, every * step_s))


def begins_every_step(case: Case) -> bool:
    """Return whether beginnings are what most measured steps consist of."""
    counted = [step for _, window in windows(case) for part in window.ranks for step in part.counted]
    return 2 * sum(step.epoch_edge for step in counted) > len(counted)


def _times(step: StepRecord) -> tuple[float, float]:
    """Return the seconds that a step waited for data, and its own."""
    return step.phases_ns[_DATA_WAIT] * NS, step.duration_ns * NS


def _excess_s(step: StepRecord, evaluating_s: float, wait_s: float, step_s: float) -> float:
    """Return what a step waited for data beyond the usual, but no more than it is longer without its evaluation."""
    wait, duration = _times(step)
    return max(0.0, min(wait - wait_s, duration - evaluating_s - step_s))


def _evaluations_s(rank: Rank) -> dict[int, float]:
    return {step: duration_ns * NS for step, duration_ns in events_by_step(rank, "evaluation").items()}


def _steps_per_epoch(case: Case) -> int | None:
    return next((r.record.steps_per_epoch for launch in launches(case) for r in launch.ranks if r.record), None)
