"""Noise of machines that are not there: what calibration would say of them, and pairs of launches on them."""

from __future__ import annotations

import itertools
import math

import numpy as np

from dpdoctor.gate.model import ModeNoise

# Share of launches that something else holds up, and by how much on average.
OUTLIERS, HELD_UP = 0.05, 0.10


def noise(pair_sd: float, run_cv: float | None = None) -> ModeNoise:
    """Return the noise of a machine whose pairs spread so; its launches by sqrt(2) less, unless `run_cv` says."""
    return ModeNoise(
        run_cv=pair_sd / math.sqrt(2) if run_cv is None else run_cv,
        shown_cv=pair_sd / math.sqrt(2),
        pair_sd=pair_sd,
        autocorrelation=0.0,
        median_s=0.1,
        log_ratios=tuple(pair_sd * np.random.default_rng(1).normal(size=20)),
        log_seconds=(),
    )


def log_ratios(seed: int, gates: int, pairs: int, *, run_cv: float, drift: float, slowdown: float = 0.0) -> np.ndarray:
    """Return ln(head / base) of ABBA pairs, shape (gates, pairs): launches spread, drift, and some are held up."""
    dice = np.random.default_rng(seed)
    shape = (gates, 2 * pairs)
    held_up = np.log1p(dice.exponential(HELD_UP, size=shape)) * (dice.random(shape) < OUTLIERS)
    times = dice.normal(0, run_cv, size=shape) + held_up + np.cumsum(dice.normal(0, drift, size=shape), axis=1)
    first, second = times[:, ::2], times[:, 1::2]
    is_base_first = np.arange(pairs) % 2 == 0
    return np.where(is_base_first, second - first, first - second) + math.log1p(slowdown)


QUIET = noise(0.01)
_SPREAD = (-0.012, 0.004, 0.009, -0.007, 0.0, 0.011, -0.003)


def pairs(slowdown: float, num: int) -> list[float]:
    """Return log ratios about a slowdown, with the spread of a quiet machine, the same every time."""
    return [math.log1p(slowdown) + away for away in itertools.islice(itertools.cycle(_SPREAD), num)]


CALIBRATED = ModeNoise(
    run_cv=0.01,
    shown_cv=0.01,
    pair_sd=0.014,
    autocorrelation=0.0,
    median_s=0.1,
    log_ratios=(0.0,) * 10,
    log_seconds=(0.0,) * 20,
    sharing="per-device",
)
