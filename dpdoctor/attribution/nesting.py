"""Events that nest in one another on a thread: which runs at a moment, and their time without what they hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.intervals import contains, merge
from dpdoctor.trace.model import UNKNOWN, Events

_Integers = NDArray[np.int64]


def running_at(events: Events, rows: _Integers, threads: NDArray[np.int32], times: _Integers) -> _Integers:
    """Return int64[n]: for each thread and time, which of these rows runs there then; UNKNOWN: none.

    The rows must not nest in one another on one thread; where they do, only the one begun last is looked at.
    """
    begin, end, asked = _keys(events, rows, threads, times)
    order = np.argsort(begin, kind="stable")
    last = np.concatenate(([UNKNOWN], order))[np.searchsorted(begin[order], asked, side="right")]
    runs = (last != UNKNOWN) & (asked < np.append(end, 0)[last])
    return np.where(runs, np.append(rows, UNKNOWN)[last], UNKNOWN)


def is_inside(events: Events, rows: _Integers, threads: NDArray[np.int32], times: _Integers) -> NDArray[np.bool_]:
    """Return bool[n]: whether any of these rows, which may nest, runs on each thread at each time."""
    found = np.zeros(len(times), bool)
    for thread in np.unique(events.thread[rows]).tolist():
        asked = np.flatnonzero(threads == thread)
        found[asked] = contains(merge(events.spans_of(rows[events.thread[rows] == thread])), times[asked])
    return found


def _keys(events: Events, rows: _Integers, threads: NDArray[np.int32], times: _Integers) -> list[_Integers]:
    """Return numbers for the begins and ends of the rows and for the times asked for, ordered by thread, then time."""
    columns = (events.begin_ns[rows], events.end_ns[rows], times)
    on = np.concatenate((events.thread[rows], events.thread[rows], threads)).astype(np.int64)
    _, rank = np.unique(np.concatenate(columns), return_inverse=True)
    return np.split(on * len(on) + rank, (len(rows), 2 * len(rows)))


def self_times(begin_ns: _Integers, end_ns: _Integers) -> _Integers:
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


def _holders(begin: _Integers, end: _Integers) -> _Integers:
    """Return which event directly holds each, of events sorted by begin, the longer first; -1: none does."""
    position = np.arange(len(begin))
    depth = position - np.searchsorted(np.sort(end), begin, side="right")
    # By depth, and within a depth by begin: the holder is the last one before, one level up.
    key = depth * len(begin) + position
    by_depth = np.argsort(key)
    found = np.searchsorted(key[by_depth], key - len(begin)) - 1
    return np.where(depth > 0, by_depth[found], -1)
