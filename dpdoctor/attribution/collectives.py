"""Every communication event of a rank: its operation, group and size, who made it, how much of it is exposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.callers import callers
from dpdoctor.attribution.collective_metadata import descriptions
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.intervals import lengths_within, merge
from dpdoctor.attribution.parts import Part
from dpdoctor.trace.columns import UNKNOWN
from dpdoctor.trace.model import Trace

_ABSURD = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """The n communication events of a rank in the order of their begin, on all its devices; arrays are int64[n].

    Attributes:
        rows: index into Trace.events.
        device: DeviceEvents.index.
        caller: the host event that made it: the operator, else the annotation, else the launch; UNKNOWN: none is seen.
        begin_ns, end_ns: of the kernel, or of the span on the backend's thread.
        exposed_ns: while nothing computed on the same device; on a host, while its training thread ran no operator.
        operations: n names of `collective_names`.
        groups, dtypes: n names; empty: the trace does not say.
        group_size, num_bytes, seq: UNKNOWN where the trace does not say. Bytes are those of the whole tensor.
    """

    rows: NDArray[np.int64]
    device: NDArray[np.int64]
    caller: NDArray[np.int64]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    exposed_ns: NDArray[np.int64]
    operations: tuple[str, ...]
    groups: tuple[str, ...]
    dtypes: tuple[str, ...]
    group_size: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    seq: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


def collectives(trace: Trace, devices: Sequence[DeviceEvents]) -> Collectives:
    """Return all communication events on these devices."""
    parts = [np.flatnonzero(device.part == Part.COMM) for device in devices]
    rows = _join([device.rows[at] for device, at in zip(devices, parts, strict=True)])
    order = np.argsort(trace.events.begin_ns[rows], kind="stable")
    rows = rows[order]
    launch = _join([device.call[at] for device, at in zip(devices, parts, strict=True)])[order]
    by = callers(trace, rows, launch)
    calls = descriptions(trace, rows, by)
    return Collectives(
        rows=rows,
        device=_join([np.full(len(at), device.index) for device, at in zip(devices, parts, strict=True)])[order],
        caller=by.outermost,
        begin_ns=trace.events.begin_ns[rows],
        end_ns=trace.events.end_ns[rows],
        exposed_ns=_join([_exposed(device, at) for device, at in zip(devices, parts, strict=True)])[order],
        operations=tuple(call.operation for call in calls),
        groups=tuple(call.group for call in calls),
        dtypes=tuple(call.dtype for call in calls),
        group_size=_column([call.group_size for call in calls]),
        num_bytes=_column([call.num_bytes for call in calls]),
        seq=_column([call.seq for call in calls]),
    )


def _exposed(device: DeviceEvents, at: NDArray[np.int64]) -> NDArray[np.int64]:
    events = device.events
    compute = merge(events.spans[device.part == Part.COMPUTE])
    return events.duration_ns[at] - lengths_within(compute, events.spans[at])


def _join(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *columns])


def _column(values: Sequence[int | None]) -> NDArray[np.int64]:
    """Damaged files hold any number: what is negative or absurdly large is not known."""
    return np.array([UNKNOWN if value is None or not 0 <= value < _ABSURD else value for value in values], np.int64)
