"""Which host events were running on a thread at a moment; for any number of threads, without a loop over them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdoctor.trace.columns import UNKNOWN, Events

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
    begin, end, asked = _keys(events, rows, threads, times)
    order = np.argsort(begin, kind="stable")
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end[order])))
    return np.asarray(asked < reach[np.searchsorted(begin[order], asked, side="right")])


def _keys(events: Events, rows: _Integers, threads: NDArray[np.int32], times: _Integers) -> list[_Integers]:
    """Return numbers for the begins and ends of the rows and for the times asked for, ordered by thread, then time."""
    columns = (events.begin_ns[rows], events.end_ns[rows], times)
    on = np.concatenate((events.thread[rows], events.thread[rows], threads)).astype(np.int64)
    _, rank = np.unique(np.concatenate(columns), return_inverse=True)
    return np.split(on * len(on) + rank, (len(rows), 2 * len(rows)))
