"""A measured figure with its interval: means, medians and ratios, and the few probabilities that they need.

scipy has those, too, but takes longer to load than a trace to be read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

SCOPES = ("run", "launches", "calibrated")


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A measured figure with its 95% interval, or None with the reason why it is unknown.

    Attributes:
        n: number of values behind it: windows of one launch, or launches.
        scope: "run": the interval holds within one launch, whose windows are correlated and say nothing of
            another launch; "launches": between launches; "calibrated": between launches, too, of which only one was
            measured, by how far launches of this workload differ on this machine.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    unit: str
    scope: str = "run"
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.value is None and not self.reason:
            raise ValueError("an unknown figure needs a reason")
        if self.scope not in SCOPES:
            raise ValueError(f"scope is {self.scope!r}; known: {', '.join(SCOPES)}")


# Halving a quarter turn so often leaves the spacing of floating-point numbers.
_HALVINGS = 60


@cache
def student_quantile(confidence: float, degrees: int) -> float:
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
    """Return k: the median lies between the k-th smallest and the k-th largest of n values, with 95% at least.

    Fewer than k of them fall below the median with less than 2.5%; 0: no pair of values covers 95%, as below six.
    """
    # Of n tosses so few heads, ten standard deviations from the mean, are none.
    first = max(0, n // 2 - 5 * math.isqrt(n))
    heads = np.arange(first, n // 2)
    log_first = math.lgamma(n + 1) - math.lgamma(first + 1) - math.lgamma(n - first + 1) - n * math.log(2)
    share = math.exp(log_first) * np.cumprod(np.concatenate(([1.0], (n - heads) / (heads + 1))))
    return first + int(np.searchsorted(np.cumsum(share), 0.025))


# A modified z-score above this is an outlier.
MODIFIED_Z = 3.5
# A normal distribution's standard deviation over its median absolute deviation.
MAD_TO_SIGMA = 1.4826
TOO_UNLIKE = "its windows, or launches, differ so much that its interval reaches zero: measure longer, or more of them"


def student_t(degrees: int) -> float:
    """Return the quantile of Student's t that bounds a two-sided 95% interval."""
    return student_quantile(0.95, degrees)


def unknown(unit: str, reason: str) -> Figure:
    """Return the figure that could not be had, with its reason."""
    return Figure(value=None, unit=unit, reason=reason)


def mean_interval(
    values: Sequence[float], unit: str, *, scope: str = "run", reason: str = "nothing was measured"
) -> Figure:
    """Return the mean with its 95% Student-t interval; no interval below two values, unknown below one."""
    if not len(values):
        return unknown(unit, reason)
    mean = float(np.mean(values))
    if len(values) < 2:
        return Figure(value=mean, n=1, unit=unit, scope=scope)
    half = student_t(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Figure(value=mean, low=mean - half, high=mean + half, n=len(values), unit=unit, scope=scope)


def ratio_of_totals(
    parts: Sequence[tuple[float, float]], unit: str, *, signed: bool = False, reason: str = "nothing was measured"
) -> Figure:
    """Return sum(amounts) / sum(weights) of (amount, weight) pairs, with a 95% interval over the pairs.

    Samples over seconds, not the mean of the windows' own rates: that mean reads too low where a step's time does
    not grow in proportion to its batch, the more the fewer and the more varied the batches of a window. The standard
    error is that of the ratio estimator, by linearisation (Cochran, Sampling Techniques, 3rd ed., 1977, chapter 6),
    with Student's t for its degrees of freedom; no interval below two pairs, unknown below one. It begins at zero or
    above where amounts are never below that, as times are; those that may be, as differences are, are `signed`.
    """
    if not len(parts):
        return unknown(unit, reason)
    amounts, weights = np.asarray(parts, dtype=float).T
    if weights.sum() <= 0:
        return unknown(unit, "division by zero")
    value, n = float(amounts.sum() / weights.sum()), len(parts)
    if n < 2:
        return Figure(value=value, n=n, unit=unit)
    # The residuals add up to zero, so their standard deviation is their root mean square.
    residuals = (amounts - value * weights) / weights.mean()
    half = student_t(n - 1) * float(np.std(residuals, ddof=1)) / math.sqrt(n)
    low = value - half if signed else max(0.0, value - half)
    return Figure(value=value, low=low, high=value + half, n=n, unit=unit)


def median_interval(values: Sequence[float], unit: str, *, reason: str = "nothing was measured") -> Figure:
    """Return the median with its distribution-free 95% interval from binomial order statistics.

    The interval is left out below six values, where no pair of order statistics covers 95%.
    """
    if not len(values):
        return unknown(unit, reason)
    ordered = np.sort(np.asarray(values, dtype=float))
    n = len(ordered)
    median = float(np.median(ordered))
    if n < 6:
        return Figure(value=median, n=n, unit=unit)
    k = median_rank(n)
    return Figure(value=median, low=float(ordered[k - 1]), high=float(ordered[n - k]), n=n, unit=unit)


def ratio(numerator: Figure, denominator: Figure, unit: str, *, factor: float = 1.0) -> Figure:
    """Return factor * numerator / denominator, for independent parts.

    Half widths stand for the standard errors in Fieller's theorem, so the interval keeps the coverage of its parts;
    each bound takes those of its own side (MOVER-R: Donner and Zou, Statistical Methods in Medical Research 21, 2012):
    a large denominator makes a positive ratio small, and a negative one less so. There is none where a part has none or
    the denominator's interval reaches zero. A factor, unit "x", is of two positive figures: one whose interval reaches
    zero is unknown.
    """
    for part in (numerator, denominator):
        if part.value is None:
            return unknown(unit, part.reason or "unknown")
    a, b = numerator.value, denominator.value
    assert a is not None
    assert b is not None
    if b == 0:
        return unknown(unit, "division by zero")
    n = min(numerator.n, denominator.n)
    scope = numerator.scope if numerator.scope == denominator.scope else _narrower(numerator, denominator)
    found = Figure(value=factor * a / b, n=n, unit=unit, scope=scope)
    if numerator.low is None or numerator.high is None or denominator.low is None or denominator.high is None:
        return found
    above, below = denominator.high - b, b - denominator.low
    if a / b < 0:
        above, below = below, above
    low = _fieller(a, b, a - numerator.low, above, -1)
    high = _fieller(a, b, numerator.high - a, below, 1)
    if low is None or high is None:
        return found
    if unit == "x" and factor * low <= 0:
        return unknown(unit, TOO_UNLIKE)
    return replace(found, low=factor * low, high=factor * high)


def _fieller(a: float, b: float, half_a: float, half_b: float, side: int) -> float | None:
    """Return the bound of a / b below (side -1) or above it (1); None: b's interval reaches zero."""
    g = (half_b / b) ** 2
    if g >= 1:
        return None
    middle, spread = a / b, math.sqrt(half_a**2 * (1 - g) + (a / b * half_b) ** 2) / abs(b)
    if side * middle < 0:
        # The same without a difference of like numbers: exactly 0 where a's own bound is.
        return (a - half_a) * (a + half_a) / b**2 / (middle - side * spread)
    return (middle + side * spread) / (1 - g)


def _narrower(one: Figure, other: Figure) -> str:
    """Return how far an interval of two figures holds that hold differently far."""
    return "run" if "run" in (one.scope, other.scope) else "calibrated"


def calibrated(figure: Figure, spread: float | None) -> Figure:
    """Return the figure of one launch with an interval that holds between launches; None: nothing is known of those.

    `spread` is the half width of the 95% interval in which launches lie, relative. It adds to what the windows of the
    launch say, in squares, on each side of the value; an interval without an upper end gets none.
    """
    if spread is None or figure.value is None or figure.scope != "run":
        return figure
    above = half_width(figure)
    below = figure.value - figure.low if figure.low else above  # one of zero may have been cut off there
    low, high = (math.hypot(half, spread * figure.value) for half in (below, above))
    is_bounded = figure.low is None or figure.high is not None
    return replace(
        figure,
        low=max(0.0, figure.value - low),
        high=figure.value + high if is_bounded else None,
        scope="calibrated",
    )


def scaled(figure: Figure, factor: float) -> Figure:
    """Return a figure and its interval times a factor; unknown stays unknown."""

    def times(value: float | None) -> float | None:
        return None if value is None else value * factor

    return replace(figure, value=times(figure.value), low=times(figure.low), high=times(figure.high))


def combination(parts: Sequence[tuple[float, Figure]], unit: str) -> Figure:
    """Return the sum of factor * figure over (factor, figure) pairs, with an interval for independent parts.

    The half widths add up in squares, each bound with those of its own side, so the interval keeps the coverage of its
    parts (MOVER-D: Zou and Donner, Statistics in Medicine 27, 2008); there is none where a part has none. Unknown where
    a part is unknown, with that part's reason.
    """
    reason = next((figure.reason for _, figure in parts if figure.value is None), None)
    if reason is not None:
        return unknown(unit, reason)
    values = [factor * (figure.value or 0.0) for factor, figure in parts]
    value, n = math.fsum(values), min((figure.n for _, figure in parts), default=0)
    ends = [(factor * f.low, factor * f.high) for factor, f in parts if f.low is not None and f.high is not None]
    if len(ends) < len(parts):
        return Figure(value=value, n=n, unit=unit)
    below = math.hypot(*(of - min(bounds) for of, bounds in zip(values, ends, strict=True)))
    above = math.hypot(*(max(bounds) - of for of, bounds in zip(values, ends, strict=True)))
    return Figure(value=value, low=value - below, high=value + above, n=n, unit=unit)


def outlier_limit(values: NDArray[np.float64] | NDArray[np.int64], least_ratio: float) -> float:
    """Return the value above which one is far above the others: by its modified z-score, and `least_ratio` medians.

    Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993).
    """
    usual = float(np.median(values))
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(values - usual)))
    return max(least_ratio * usual, usual + MODIFIED_Z * sigma)


def half_width(figure: Figure) -> float:
    """Return half of a figure's 95% interval; 0 where it has none."""
    # The upper half: the lower one may have been cut off at zero.
    return 0.0 if figure.value is None or figure.high is None else figure.high - figure.value
