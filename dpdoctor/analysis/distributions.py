"""The few probabilities that figures need. scipy has them, too, but takes longer to load than a trace to be read."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

# Halving a quarter turn so often leaves the spacing of floating-point numbers.
_HALVINGS = 60


@cache
def student_t(confidence: float, degrees: int) -> float:
    """Return the quantile of Student's t that bounds a two-sided interval of this confidence.

    For whole degrees of freedom the distribution is a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4); its
    inverse is found by halving.

    Raises:
        ValueError: there are no degrees of freedom, or the confidence is not between 0 and 1.
    """
    if degrees < 1 or not 0 < confidence < 1:
        raise ValueError(f"no quantile of Student's t for {degrees} degrees of freedom at {confidence}")
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _within(middle, degrees) > confidence else (middle, high)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _within(angle: float, degrees: int) -> float:
    """Return how probable it is that |t| is at most sqrt(degrees) * tan(angle)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    if degrees == 1:
        return 2 / math.pi * angle
    even, odd = 2 * np.arange(1, degrees // 2), 2 * np.arange(1, degrees // 2) + 1
    if degrees % 2:
        terms = 1 + float(np.cumprod(even / odd * cosine**2).sum())
        return 2 / math.pi * (angle + sine * cosine * terms)
    return sine * (1 + float(np.cumprod((even - 1) / even * cosine**2).sum()))


def at_least(successes: int, trials: int, one_in: int) -> float:
    """Return how probable so many successes or more are in independent trials of which one in so many succeeds."""
    fails, term, total = one_in - 1, 1, 0
    # The terms of all successes first: comb(trials, k) * fails**(trials - k), over one_in**trials.
    for k in range(trials, max(successes, 0) - 1, -1):
        total += term
        term = term * k * fails // (trials - k + 1)
    return float(total / one_in**trials)


def median_rank(n: int) -> int:
    """Return k: the median lies between the k-th smallest and the k-th largest of n values, with 95 % at least.

    Fewer than k of them fall below the median with less than 2.5 %; 0: no pair of values covers 95 %, as below six.
    """
    # Of n tosses so few heads, ten standard deviations from the mean, are none.
    first = max(0, n // 2 - 5 * math.isqrt(n))
    heads = np.arange(first, n // 2)
    log_first = math.lgamma(n + 1) - math.lgamma(first + 1) - math.lgamma(n - first + 1) - n * math.log(2)
    share = math.exp(log_first) * np.cumprod(np.concatenate(([1.0], (n - heads) / (heads + 1))))
    return first + int(np.searchsorted(np.cumsum(share), 0.025))
