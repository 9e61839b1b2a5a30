"""Figures and facts of several runs against those of the first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dpdoctor.analysis import stats
from dpdoctor.analysis.comparison.model import Change, Compared, Direction, Fact, Value
from dpdoctor.analysis.figure import Figure

# Share of a figure below which a difference is that of floating-point sums in another order.
ROUNDING = 1e-9


def compared(figures: Sequence[Figure]) -> Compared:
    """Return figures of one unit, one of each run, and how each stands to the first."""
    base, *others = figures
    return Compared(figures=tuple(figures), changes=tuple(_change(base, other) for other in others))


def fact(name: str, values: Sequence[Value]) -> Fact:
    """Return values that are known without error, one of each run, and which of them are others than the first."""
    base, *others = values
    differs = tuple(None if None in (base, other) else other != base for other in others)
    return Fact(name=name, values=tuple(values), differs=differs)


def _change(base: Figure, other: Figure) -> Change:
    difference = stats.combination([(1.0, other), (-1.0, base)], other.unit)
    if difference.value is not None and base.scope == other.scope:
        difference = dataclasses.replace(difference, scope=base.scope)
    rounding = ROUNDING * max(abs(base.value or 0.0), abs(other.value or 0.0))
    return Change(ratio=stats.ratio(other, base, "x"), difference=difference, verdict=_verdict(difference, rounding))


def _verdict(difference: Figure, rounding: float) -> Direction:
    """Return whether the interval of the difference leaves out 0 by more than rounding.

    By Fieller's theorem it does exactly where the interval of the ratio leaves out 1; but the ratio has none where the
    base's interval reaches 0, as that of a phase that hardly takes time.
    """
    if difference.value is None:
        return "unknown"
    if difference.low is None or difference.high is None:
        return "unclear"
    if difference.low > rounding:
        return "more"
    return "less" if difference.high < -rounding else "alike"
