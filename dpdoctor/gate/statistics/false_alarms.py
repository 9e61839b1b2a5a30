"""How often a gate would fail a change that changes nothing, by the A/A pairs of a machine themselves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdoctor.gate.model import ModeNoise
from dpdoctor.gate.statistics.design import Plan
from dpdoctor.gate.statistics.power import capability
from dpdoctor.gate.statistics.rule import is_fine, is_too_slow
from dpdoctor.gate.statistics.signed_rank import Array, location

_GATES = 2000


def false_fail_rate(noise: ModeNoise, plan: Plan, asked: float) -> float:
    """Return the share of gates on A/A pairs that would fail, with a tolerance of `asked`.

    The pairs of 2,000 gates are drawn from the calibration's, with replacement and from a fixed seed. Which launch of
    an A/A pair is called head is arbitrary, so each is turned round with a probability of one half.
    """
    dice = np.random.default_rng(0)
    shape = (_GATES, plan.last.pairs)
    pairs = dice.choice(noise.log_ratios, size=shape) * dice.choice([-1.0, 1.0], size=shape)
    return float(np.mean(failed(pairs, plan, capability(plan, noise.pair_sd, asked).tolerance)))


def failed(log_ratios: Array, plan: Plan, tolerance: float) -> NDArray[np.bool_]:
    """Return which gates call a regression, given the pairs of each: shape (gates, pairs of the last look)."""
    found = np.zeros(len(log_ratios), dtype=bool)
    goes_on = np.ones(len(log_ratios), dtype=bool)
    for look in plan.looks:
        at = location(log_ratios[:, : look.pairs], low_alpha=look.alpha, high_alpha=look.alpha)
        found |= goes_on & is_too_slow(at, tolerance)
        goes_on &= ~(is_too_slow(at, tolerance) | is_fine(at, tolerance))
    return found
