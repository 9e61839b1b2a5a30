"""Where the differences of pairs lie: the Hodges-Lehmann estimate and the exact bounds of the signed-rank test.

scipy has the test (`scipy.stats.wilcoxon`), but neither the estimate nor the bounds that go with it. They are order
statistics of the Walsh averages (d_i + d_j) / 2, i <= j (Hollander, Wolfe and Chicken, Nonparametric Statistical
Methods, 3rd ed., 2014, section 3.2 and 3.3). All that is assumed of the differences is that they are independent and
symmetric about one centre. Equal differences and zeros make the bounds hold with more than the stated confidence,
never with less: they are counted against whoever claims that the centre lies beyond.
"""

from __future__ import annotations

from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """The centre of differences: the Hodges-Lehmann estimate and its bounds, of the shape of the leading axes.

    `low` is -inf and `high` inf where so few differences give no bound of the confidence that was asked for.
    """

    value: Array
    low: Array
    high: Array


def location(differences: Array, *, low_alpha: float, high_alpha: float) -> Location:
    """Return the centre of n differences, shape (..., n), with one-sided bounds.

    The centre lies below `low` with a probability of at most `low_alpha`, above `high` with at most `high_alpha`.

    Raises:
        ValueError: there is no difference, or an alpha that is not between 0 and 0.5.
    """
    n = differences.shape[-1]
    if n == 0:
        raise ValueError("nothing lies anywhere: there is no difference")
    for alpha in (low_alpha, high_alpha):
        if not 0 < alpha < 0.5:
            raise ValueError(f"alpha is {alpha}; it must lie between 0 and 0.5")
    averages = np.sort(walsh_averages(differences), axis=-1)
    return Location(
        value=np.median(averages, axis=-1),
        low=_smallest(averages, bound_rank(n, low_alpha)),
        high=-_smallest(-averages[..., ::-1], bound_rank(n, high_alpha)),
    )


def walsh_averages(differences: Array) -> Array:
    """Return the means of all pairs of differences, each with itself included: (..., n) to (..., n (n + 1) / 2)."""
    first, second = np.triu_indices(differences.shape[-1])
    return (differences[..., first] + differences[..., second]) / 2


def bound_rank(n: int, alpha: float) -> int:
    """Return which smallest of the Walsh averages of n differences is the lower bound; 0: none is.

    The k-th smallest lies above the centre where fewer than k averages are at or below it, that is, where the
    signed-rank statistic is less than k; k is the largest for which that has a probability of at most alpha.
    """
    return int(np.searchsorted(_cumulative(n), alpha, side="right"))


def least_differences(alpha: float) -> int:
    """Return how many differences it takes at least for a bound at `alpha`: 5 for 0.05, 7 for 0.01."""
    n = 1
    while not bound_rank(n, alpha):
        n += 1
    return n


@cache
def _cumulative(n: int) -> Array:
    """Return the probability that the signed-rank statistic of n differences is at most 0, 1, ..., n (n + 1) / 2.

    Each of the ranks 1 to n counts or does not, by the throw of a coin. Halves are exact in floating point, up to 52
    of them.
    """
    mass = np.zeros(n * (n + 1) // 2 + 1)
    mass[0] = 1.0
    for rank in range(1, n + 1):
        counted = np.concatenate([np.zeros(rank), mass[:-rank]])
        mass = (mass + counted) / 2
    return np.cumsum(mass)


def _smallest(ascending: Array, rank: int) -> Array:
    """Return the `rank`-th smallest along the last axis; -inf for rank 0."""
    return ascending[..., rank - 1] if rank else np.full(ascending.shape[:-1], -np.inf)
