"""Algebra of time intervals: sets of half-open spans [begin, end), in ns, whole arrays at a time.

A set is int64[n, 2], sorted, disjoint and without touching or empty spans, as `merge` returns it. The other functions
take and return such sets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Spans = NDArray[np.int64]
_INT64 = np.iinfo(np.int64)
_NONE = np.empty((0, 2), np.int64)


def merge(*spans: Spans) -> Spans:
    """Return the set of all times inside of any span, given in any order, overlapping or not."""
    begin, end = np.concatenate([_NONE, *spans]).T
    if not len(begin):
        return _NONE
    order = np.argsort(begin, kind="stable")  # quick where most of it is sorted already
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.concatenate(([True], begin[1:] > reach[:-1])))
    last = np.append(first[1:], len(begin)) - 1
    merged = np.stack((begin[first], reach[last]), axis=1)
    return np.compress(merged[:, 0] < merged[:, 1], merged, axis=0)


def length(spans: Spans) -> int:
    """Return the length of a set."""
    return int(np.sum(spans[:, 1] - spans[:, 0]))


def intersect(left: Spans, right: Spans) -> Spans:
    """Return the times that are in both sets."""
    small, large = sorted((left, right), key=len)
    return pieces(small, large)[1] if len(small) else _NONE


def pieces(spans: Spans, within: Spans) -> tuple[NDArray[np.int64], Spans]:
    """Return what of each of k spans, which may overlap, is in a set: int64[n], which of the k, and the n pieces."""
    first = np.searchsorted(within[:, 1], spans[:, 0], side="right")
    num = np.searchsorted(within[:, 0], spans[:, 1], side="left") - first  # spans of `within` that meet each of the k
    ours = np.repeat(np.arange(len(spans)), num)
    theirs = np.arange(len(ours)) + np.repeat(first - (np.cumsum(num) - num), num)
    begin = np.maximum(spans[ours, 0], within[theirs, 0])
    return ours, np.stack((begin, np.minimum(spans[ours, 1], within[theirs, 1])), axis=1)


def complement(spans: Spans) -> Spans:
    """Return all times that are not in the set."""
    edges = np.concatenate(([_INT64.min], spans.ravel(), [_INT64.max]))
    return edges.reshape(-1, 2)


def subtract(left: Spans, right: Spans) -> Spans:
    """Return the times that are in `left` and not in `right`."""
    return intersect(left, complement(right)) if len(right) else left


def clip(spans: Spans, begin_ns: int, end_ns: int) -> Spans:
    """Return the times of a set from `begin_ns` to `end_ns`."""
    return intersect(spans, merge(np.array([[begin_ns, end_ns]], np.int64)))


def exclusive(sets: Sequence[Spans]) -> list[Spans]:
    """Return the sets, each without the times of those before it."""
    taken = _NONE
    parts = []
    for spans in sets:
        parts.append(subtract(spans, taken))
        taken = merge(taken, spans)
    return parts


def contains(spans: Spans, times: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool[k]: which of k times are in the set, whose spans may touch."""
    begun = np.searchsorted(spans[:, 0], times, side="right")
    return np.asarray(times < np.concatenate(([_INT64.min], spans[:, 1]))[begun])


def lengths_within(spans: Spans, windows: Spans) -> NDArray[np.int64]:
    """Return int64[k]: how much of a set lies in each of k windows, which may be empty, overlap and touch."""
    before = _length_before(spans, windows)
    return before[:, 1] - before[:, 0]


def _length_before(spans: Spans, times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how much of a set lies before each time, whatever their shape."""
    begun = np.searchsorted(spans[:, 0], times, side="right")
    whole = np.concatenate(([0], np.cumsum(spans[:, 1] - spans[:, 0])))
    last_end = np.concatenate(([_INT64.min], spans[:, 1]))[begun]
    return np.asarray(whole[begun] - (np.maximum(last_end, times) - times))
