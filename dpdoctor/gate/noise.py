"""What A/A pairs, launches of the same code twice, say of a machine and a workload."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpdoctor.analysis.base.stats import MAD_TO_SIGMA
from dpdoctor.gate.model import ModeNoise, Pair

# Fewer say too little of how far launches spread: the spread of ten is itself known to a third.
LEAST_PAIRS = 10
# What a median absolute deviation is worth, next to a standard deviation of as many values (Rousseeuw and Croux,
# Alternatives to the Median Absolute Deviation, 1993).
MAD_EFFICIENCY = 0.37


def mode_noise(pairs: Sequence[Pair]) -> ModeNoise:
    """Return the noise that A/A pairs show; those that were replaced do not count.

    Raises:
        ValueError: fewer than LEAST_PAIRS count.
    """
    counted = [
        (pair.order, found, shown)
        for pair in pairs
        if pair.replaced is None
        and (found := _logs(pair.base_s, pair.head_s)) is not None
        and (shown := _logs(pair.base_shown_s, pair.head_shown_s)) is not None
    ]
    if len(counted) < LEAST_PAIRS:
        raise ValueError(f"{len(counted)} pairs count; noise is told from {LEAST_PAIRS} at least")
    ratios = [head - base for _, (base, head), _ in counted]
    launches = [value for order, both, _ in counted for value in (both if order == "AB" else both[::-1])]
    shown_launches = [value for _, _, both in counted for value in both]
    return ModeNoise(
        run_cv=spread(launches, float(np.median(launches))),
        shown_cv=spread(shown_launches, float(np.median(shown_launches))),
        # Both sides of an A/A pair are the same, so its log ratio spreads about 0.
        pair_sd=spread(ratios, 0.0),
        shown_pair_sd=spread([head - base for _, _, (base, head) in counted], 0.0),
        autocorrelation=autocorrelation(launches),
        median_s=math.exp(float(np.median(launches))),
        log_ratios=tuple(ratios),
        log_seconds=tuple(launches),
    )


def _logs(base_s: float | None, head_s: float | None) -> tuple[float, float] | None:
    """Return the logs of both sides' seconds per step; None: one of them was not measured."""
    return None if base_s is None or head_s is None else (math.log(base_s), math.log(head_s))


def spread(values: Sequence[float] | NDArray[np.float64], centre: float) -> float:
    """Return a standard deviation about `centre` that a few outliers do not change: 1.4826 times the median distance.

    The plain one where half of the values are at the centre, and the median distance would say that nothing varies.
    """
    away = np.abs(np.asarray(values) - centre)
    return MAD_TO_SIGMA * float(np.median(away)) or float(np.sqrt(np.mean(away**2)))


def degrees_of_freedom(noise: ModeNoise) -> float:
    """Return those of `run_cv`, for Student's t."""
    return max(1.0, MAD_EFFICIENCY * (len(noise.log_seconds) - 1))


def launch_spread(noise: ModeNoise) -> float:
    """Return the half width of the 95% interval in which launches lie, relative to what a report shows of a launch."""
    from scipy import stats

    return math.expm1(float(stats.t.ppf(0.975, degrees_of_freedom(noise))) * noise.shown_cv)


def autocorrelation(values: Sequence[float]) -> float:
    """Return the correlation of each value with the next (lag 1); 0 where nothing varies."""
    away = np.asarray(values) - np.mean(values)
    total = float(away @ away)
    return float(away[:-1] @ away[1:]) / total if total > 0 else 0.0
