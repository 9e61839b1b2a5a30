"""Which kernels and operators the time goes to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpdoctor import units
from dpdoctor.attribution import marks
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.nesting import self_times
from dpdoctor.digest import HOST, NamedTime
from dpdoctor.trace.model import Kind, Trace

MAX_ROWS = 100
MAX_CHARACTERS = 100_000  # of all names of a table: templates make kernel names as long as they like


def kernels(trace: Trace, devices: Sequence[DeviceEvents]) -> tuple[NamedTime, ...]:
    """Return by device the names with most time on it, copies and memsets among them; the others in one last row."""
    found: list[NamedTime] = []
    for device in devices:
        if device.index != HOST:
            events = device.events
            found += _table(trace, events.name, events.duration_ns, device=device.index)
    return tuple(found)


def operators(trace: Trace) -> tuple[NamedTime, ...]:
    """Return the operators with most time of their own, on all threads; the others in one last row.

    The total of an operator that calls itself counts the inner calls again.
    """
    rows = trace.rows(Kind.CPU_OP)
    rows = rows[~trace.named(marks.OF_LOOP)[trace.events.name[rows]]]
    rows = rows[np.argsort(trace.events.thread[rows], kind="stable")]
    events = trace.events[rows]
    own = np.zeros(len(rows), np.int64)
    edges = np.flatnonzero(np.diff(events.thread, prepend=-1, append=-1)).tolist()
    for first, last in pairwise(edges):
        own[first:last] = self_times(events.begin_ns[first:last], events.end_ns[first:last])
    return tuple(_table(trace, events.name, events.duration_ns, own))


def _table(
    trace: Trace,
    names: NDArray[np.int32],
    total_ns: NDArray[np.int64],
    self_ns: NDArray[np.int64] | None = None,
    *,
    device: int = HOST,
) -> list[NamedTime]:
    """Return one row per name, most time first."""
    count = np.bincount(names)
    total = np.bincount(names, total_ns)  # exact up to 2**53 ns, a hundred days
    own = total if self_ns is None else np.bincount(names, self_ns)
    order = np.flatnonzero(count)
    order = order[np.argsort(-own[order], kind="stable")]

    def row(name: str, which: NDArray[np.int64]) -> NamedTime:
        return NamedTime(
            name=name,
            count=int(count[which].sum()),
            total_ns=int(total[which].sum()),
            self_ns=None if self_ns is None else int(own[which].sum()),
            device=device,
        )

    length = np.cumsum([len(trace.names[number]) for number in order[:MAX_ROWS].tolist()])
    num_rows = max(1, int(np.searchsorted(length, MAX_CHARACTERS, side="right")))
    found = [row(trace.names[number], order[at : at + 1]) for at, number in enumerate(order[:num_rows].tolist())]
    others = order[num_rows:]
    return [*found, row(f"({units.count(len(others), 'other')})", others)] if len(others) else found
