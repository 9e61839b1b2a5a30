"""Time of nested events without that of the events that they hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


def self_times(begin_ns: Times, end_ns: Times) -> Times:
    """Return int64[n]: the duration of each event of one thread less those of the events directly inside of it.

    Events are given in any order; of two alike, the first holds the second. Where an event outlasts the one that holds
    it, because times were rounded, only what lies inside is taken off.
    """
    order = np.lexsort((-end_ns, begin_ns))
    order = order[begin_ns[order] < end_ns[order]]  # an empty event neither has time nor takes any
    begin, end = begin_ns[order], end_ns[order]
    inner = _holders(begin, end)
    held = np.flatnonzero(inner >= 0)
    holder = inner[held]
    taken = np.maximum(np.minimum(end[held], end[holder]) - begin[held], 0)
    own = np.zeros(len(begin_ns), np.int64)
    own[order] = end - begin
    np.subtract.at(own, order[holder], taken)
    return np.maximum(own, 0)


def _holders(begin: Times, end: Times) -> Times:
    """Return which event directly holds each, of events sorted by begin, the longer first; -1: none does."""
    position = np.arange(len(begin))
    depth = position - np.searchsorted(np.sort(end), begin, side="right")
    # By depth, and within a depth by begin: the holder is the last one before, one level up.
    key = depth * len(begin) + position
    by_depth = np.argsort(key)
    found = np.searchsorted(key[by_depth], key - len(begin)) - 1
    return np.where(depth > 0, by_depth[found], -1)
