"""Which calls of two ranks belong together, where the traces do not number them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Common calls that a shift needs at least, and as a share of the shorter trace: fewer agree by chance.
MIN_COMMON = 8
MIN_COMMON_SHARE = 0.25
# An alignment is chosen over another one when its ends agree so many times better.
CLEARLY = 2.0
# The share of the times from end to end that are compared.
COMPARED = 0.9
# How far two clocks that both count ns may seem to contradict each other: by drift, and by rounding to us.
MAX_DRIFT = 1e-4
CLOCK_SLACK_NS = 100_000

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The k calls of one rank that are to be aligned.

    Attributes:
        token: int64[k], equal for equal operation and size, on all ranks.
        begin_ns, end_ns: int64[k], on a clock of the rank's own.
        synchronising: bool[k].
    """

    token: NDArray[np.int64]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    synchronising: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """Our call k is their call k - shift, as far as sizes agree."""

    shift: int
    misfit: float


def align(ours: Side, theirs: Side) -> tuple[Rows, Rows] | str:
    """Return the rows of both sides that belong together, int64[k] each, or why that cannot be told.

    Nothing compares the two clocks: a synchronising call ends on all ranks together, so where the rows belong together
    the time from one end to the next is the same on both sides. Of all shifts under which operations and sizes agree
    and no rank leaves a call before the other came, the one whose times agree clearly better than those of all others
    is right. Sides of the same length stay as they are where another shift is not clearly better than that.
    """
    candidates = tuple(_candidates(ours, theirs))
    if not candidates and min(len(ours.token), len(theirs.token)) < MIN_COMMON:
        return "too few calls to tell which belong together, and no sequence numbers"
    if not candidates:
        return "operations, sizes or times of the calls do not agree under any shift"
    best = min(candidates, key=lambda candidate: candidate.misfit)
    same_length = len(ours.token) == len(theirs.token)
    unshifted = next((candidate for candidate in candidates if same_length and candidate.shift == 0), None)
    if unshifted is not None and not _clearly(best, unshifted):
        best = unshifted
    elif not all(_clearly(best, candidate) for candidate in candidates if candidate is not best):
        return "calls that repeat too regularly to tell which belong together, and no sequence numbers"
    pairs = _pairs(ours, theirs, best.shift)
    assert pairs is not None
    return pairs


def _clearly(better: _Candidate, worse: _Candidate) -> bool:
    return CLEARLY * better.misfit < worse.misfit


def _candidates(ours: Side, theirs: Side) -> Iterator[_Candidate]:
    for shift in _shifts(len(ours.token), len(theirs.token)):
        pairs = _pairs(ours, theirs, shift)
        if pairs is not None and possible(ours, theirs, *pairs):
            yield _Candidate(shift=shift, misfit=_misfit(ours, theirs, *pairs))


def _shifts(ours: int, theirs: int) -> range:
    """Return the shifts that leave enough common calls; sides too short for that belong together as they are or not."""
    least = max(MIN_COMMON, math.ceil(MIN_COMMON_SHARE * min(ours, theirs)))
    if min(ours, theirs) < least:
        return range(1 if ours == theirs else 0)
    return range(least - theirs, ours - least + 1)


def _pairs(ours: Side, theirs: Side, shift: int) -> tuple[Rows, Rows] | None:
    """Pair the n-th calls of each token: on threads of their own, calls of two sizes may begin in either order."""
    first, last = max(shift, 0), min(len(ours.token), len(theirs.token) + shift)
    left, right = ours.token[first:last], theirs.token[first - shift : last - shift]
    here = np.arange(first, last)
    if np.array_equal(left, right):
        return here, here - shift
    kinds = 1 + int(max(left.max(), right.max()))
    if not np.array_equal(np.bincount(left, minlength=kinds), np.bincount(right, minlength=kinds)):
        return None
    order = np.argsort(left, kind="stable")
    partner = np.empty_like(here)
    partner[order] = here[np.argsort(right, kind="stable")] - shift
    return here, partner


def possible(ours: Side, theirs: Side, left: Rows, right: Rows) -> bool:
    """Return whether some offset between the clocks lets every synchronising call end, on both, after both began it."""
    chosen = ours.synchronising[left]
    left, right = left[chosen], right[chosen]
    if not len(left):
        return True
    at_least = np.max(theirs.begin_ns[right] - ours.end_ns[left])
    at_most = np.min(theirs.end_ns[right] - ours.begin_ns[left])
    span = ours.end_ns[left].max() - ours.begin_ns[left].min()
    return bool(at_least <= at_most + CLOCK_SLACK_NS + MAX_DRIFT * span)


def _misfit(ours: Side, theirs: Side, left: Rows, right: Rows) -> float:
    """Return how far the times from end to end of synchronising calls are from equal, in ns: their mean difference.

    The largest are left out: of ends that a thread noted late because something kept it from running.
    """
    chosen = ours.synchronising[left]
    differences = np.abs(np.diff(ours.end_ns[left[chosen]]) - np.diff(theirs.end_ns[right[chosen]]))
    kept = np.sort(differences)[: math.ceil(COMPARED * len(differences))]
    return float(kept.mean()) if len(kept) else math.inf
