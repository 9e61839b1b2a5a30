"""The plan of a gate: when it looks at its pairs, what a look decides, and what that can tell on a machine.

It is fixed before the first pair. A look costs confidence: whoever tests after every pair until the test says what he
hopes for will be told so. The looks of a plan share a chance of 5% of being wrong, which adds up over the looks
whatever their data have in common (Bonferroni's inequality), so the plan may stop at any of them.

What it can tell (half widths, the least slowdown that is caught, how often a change that changes nothing would fail) is
simulated with the rule itself (exact signed-rank bounds and the Hodges-Lehmann estimate) on normal noise, from a fixed
seed. Estimate and bounds move with a slowdown by as much as it is, so one set of draws without a slowdown serves all:
nothing has to be searched. The usual formula with Student's t, (t(1 - alpha) + t(0.8)) sd / sqrt(n), promises too much
of so few pairs: at 7 pairs and alpha 0.01 it says 1.53 standard deviations, where the exact test needs 1.86.
"""

from __future__ import annotations

import math
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor.gate.model import ModeNoise
from dpdoctor.gate.signed_rank import Array, Location, bound_rank, least_differences, location

# What the looks of a plan spend together, one-sided.
ALPHA = 0.05
USUAL_PAIRS = 20
# Longer plans are not offered: a machine that needs more is not one to gate on.
MOST_PAIRS = 200


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A number of pairs after which the gate judges, and the one-sided error that each of its bounds may have."""

    pairs: int
    alpha: float

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= ALPHA:
            raise ValueError(f"alpha is {self.alpha}; it must lie above 0 and not above {ALPHA}")
        least = least_differences(self.alpha)
        if self.pairs < least:
            raise ValueError(f"{self.pairs} pairs give no bound at alpha {self.alpha}; it takes {least}")


# 5 pairs cannot reach alpha 0.01.
_INTERIM = (Look(pairs=7, alpha=0.01), Look(pairs=12, alpha=0.015))
LEAST_PAIRS = _INTERIM[0].pairs


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The looks of a gate.

    Attributes:
        most_run_cv: the plan is only for machines whose launches spread by no more than this; None: for any.
    """

    looks: tuple[Look, ...]
    most_run_cv: float | None = None

    def __post_init__(self) -> None:
        pairs = [look.pairs for look in self.looks]
        if not pairs or pairs != sorted(set(pairs)):
            raise ValueError(f"looks are after {pairs} pairs; it takes one at least, each after more pairs")
        spent = math.fsum(look.alpha for look in self.looks)
        if spent > ALPHA and not math.isclose(spent, ALPHA):
            raise ValueError(f"the looks spend {spent}; together they may spend {ALPHA}")

    @property
    def last(self) -> Look:
        """Return the look after which the gate stops, whatever it sees."""
        return self.looks[-1]

    def is_due(self, pairs: int) -> bool:
        """Return whether the gate judges after so many pairs."""
        return any(look.pairs == pairs for look in self.looks)

    def look_for(self, pairs: int) -> Look:
        """Return the look that so many pairs lead to or, past the end of the plan, its last."""
        return next((look for look in self.looks if look.pairs >= pairs), self.last)


def sequence(most_pairs: int = USUAL_PAIRS) -> Plan:
    """Return the usual plan: looks after 7, 12 and 20 pairs with an alpha of 0.01, 0.015 and 0.025.

    Another number of pairs ends it earlier or later; its last look always spends what is left.

    Raises:
        ValueError: fewer than 7 pairs.
    """
    if most_pairs < LEAST_PAIRS:
        raise ValueError(f"a gate of {most_pairs} pairs cannot tell; it takes {LEAST_PAIRS} at least")
    before = tuple(look for look in _INTERIM if look.pairs < most_pairs)
    left = round(ALPHA - math.fsum(look.alpha for look in before), 6)
    return Plan(looks=(*before, Look(pairs=most_pairs, alpha=left)))


# One look at the fewest pairs that reach alpha 0.05. Two outliers among five can hide a slowdown or make one up, so it
# is for quiet machines.
QUICK = Plan(looks=(Look(pairs=5, alpha=ALPHA),), most_run_cv=0.01)


def holm_alpha(alpha: float, num_modes: int, num_failed: int) -> float:
    """Return the error that a look's lower bound may have in one of several modes gated together.

    Holm's procedure (Scandinavian Journal of Statistics 6, 1979): the modes share alpha; a mode that failed has
    rejected its hypothesis and leaves its share to the others. With looks it stays valid, as every mode splits what
    it has over the looks in the same proportions: by Bonferroni's inequality the error over all looks is at most the
    mode's share, whenever the gate stops, and shares only grow (Maurer and Bretz, Statistics in Biopharmaceutical
    Research 5, 2013). A mode fails only where it is slower by the tolerance, too, which is rarer than its rejection.

    The bound against "too slow" is not shared out: the gate passes only if all modes do, so to pass wrongly it must
    be wrong about a mode that is too slow, whichever that is (the intersection-union test of Berger, Technometrics
    24, 1982).
    """
    return alpha / (num_modes - num_failed)


# Share of the tolerance, of log ratios, that head must be slower for certain. Simulated, where pairs differ by 6%:
# with 0, 0.2% of gates of the same code fail and 2.8% of those 2% slower; with a half 0.03% and 0.7%, and the
# slowdown that is found with a probability of 80% grows from 7.1 to 7.4%. With 1 it would be 10.3%.
CERTAIN = 0.5


def is_too_slow(at: Location, tolerance: float) -> NDArray[np.bool_]:
    """Return where log ratios lie so high that head regressed.

    By the estimate it is not below the tolerance, and for certain above CERTAIN of it.
    """
    allowed = math.log1p(tolerance)
    return np.asarray((at.low > CERTAIN * allowed) & (at.value >= allowed))


def is_fine(at: Location, tolerance: float) -> NDArray[np.bool_]:
    """Return where log ratios lie below a relative tolerance for certain."""
    return np.asarray(at.high < math.log1p(tolerance))


POWER = 0.8
# The standard error of what is read off these draws is about 1%.
_DRAWS = 10_000
# So many Walsh averages are held at once.
_MOST_AVERAGES = 4_000_000


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan can do for a mode on a machine.

    Attributes:
        tolerance: relative slowdown that the gate allows: what was asked, or twice the half width of an A/A interval
            after the plan's last look, where that is more.
        mde: least relative slowdown that the plan, gone through to its last look, calls a regression with a
            probability of 0.8.
        pairs_needed: that would find twice of what was asked with that probability; None: the plan finds it.
    """

    tolerance: float
    mde: float
    pairs_needed: int | None


@lru_cache(maxsize=64)
def capability(plan: Plan, pair_sd: float, asked: float, num_modes: int = 1) -> Capability:
    """Return what a plan can do where a relative slowdown of `asked` is to be allowed in each of `num_modes` modes.

    `pair_sd` is the standard deviation of the log ratios of A/A pairs, as ModeNoise has it.

    The tolerance is one for the whole plan, known before its first pair: an early look has a wide interval, and would
    pass what the last one would not if it allowed as much more.
    """
    last = plan.last
    tolerance = max(asked, math.expm1(2 * half_width(last.pairs, last.alpha, pair_sd)))
    mde = least_effect(last.pairs, last.alpha / num_modes, pair_sd, tolerance)
    needed = None if mde <= 2 * asked else max(last.pairs + 1, pairs_needed(last.alpha, pair_sd, asked))
    return Capability(tolerance=tolerance, mde=mde, pairs_needed=needed)


def half_width(pairs: int, alpha: float, pair_sd: float) -> float:
    """Return how far a one-sided bound at `alpha` lies from the estimate on average, in log ratios."""
    value, low = _unit_draws(pairs, alpha)
    return pair_sd * float(np.mean(value - low))


def least_effect(pairs: int, alpha: float, pair_sd: float, tolerance: float) -> float:
    """Return the minimum detectable effect of a look: the relative slowdown that it fails with a probability of 0.8.

    To fail takes an estimate that is not below the tolerance and a lower bound above CERTAIN of it: the slowdown must
    make up for what either of them lacks without it. Infinite where so few pairs give no bound at `alpha`.
    """
    if not bound_rank(pairs, alpha):
        return math.inf
    value, low = _unit_draws(pairs, alpha)
    allowed = math.log1p(tolerance)
    lacks = np.maximum(CERTAIN * allowed - pair_sd * low, allowed - pair_sd * value)
    return math.expm1(float(np.quantile(lacks, POWER)))


def pairs_needed(alpha: float, pair_sd: float, asked: float) -> int:
    """Return about how many pairs find twice of `asked` with a probability of 0.8, with a last look at `alpha`.

    The estimate of many pairs is normal with a standard deviation of sqrt(pi / 3 / n) times that of a pair: the
    asymptotic efficiency of the signed-rank test is 3 / pi (Hollander, Wolfe and Chicken, Nonparametric Statistical
    Methods, 3rd ed., 2014, section 3.11). To estimate beyond a tolerance of twice the half width is what takes most; to
    be sure of a half of it as well, and so few pairs as fit into a gate, take a little more (by simulation).
    """
    from scipy import stats

    at_bound, at_power = (float(stats.norm.ppf(share)) for share in (1 - alpha, POWER))
    errors = 2 * at_bound + at_power
    return 2 + math.ceil(1.06 * math.pi / 3 * (errors * pair_sd / math.log1p(2 * asked)) ** 2)


@lru_cache(maxsize=64)
def _unit_draws(pairs: int, alpha: float) -> tuple[Array, Array]:
    """Return estimates and lower bounds of so many pairs of standard normal noise, of `_DRAWS` gates."""
    dice = np.random.default_rng(pairs)
    batch = max(1, _MOST_AVERAGES // (pairs * (pairs + 1) // 2))
    sizes = [min(batch, _DRAWS - begin) for begin in range(0, _DRAWS, batch)]
    found = [location(dice.standard_normal((size, pairs)), low_alpha=alpha, high_alpha=alpha) for size in sizes]
    return np.concatenate([one.value for one in found]), np.concatenate([one.low for one in found])


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
