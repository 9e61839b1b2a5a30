"""What ran on each device, and which call of the host launched it."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dpdoctor.attribution import marks
from dpdoctor.attribution.callers import launches, queued_by
from dpdoctor.attribution.host_waits import waits
from dpdoctor.attribution.intervals import Spans, complement, pieces
from dpdoctor.attribution.parts import Part, parts
from dpdoctor.digest import HOST
from dpdoctor.trace.model import ON_DEVICE, UNKNOWN, Events, Kind, Trace

_INT64 = np.iinfo(np.int64)
# When something was launched whose call the trace does not hold: the host ran ahead of the device when recording
# began, or the call is lost.
BEFORE_RECORDING = int(_INT64.min)
NEVER_SEEN = int(_INT64.max)


class DeviceEvents(msgspec.Struct, frozen=True, kw_only=True):
    """What ran on one device, n events sorted by their begin.

    On the HOST, these are the operators of the training thread and the collectives on the backend's own threads; an
    operator is its own call, and the call of a collective is the operator of c10d that queued it. An operator that
    holds hooks of fully_shard is there once for each of its pieces between them.

    Attributes:
        index: of the device; HOST: there is none.
        rows: int64[n], index into Trace.events.
        events: those rows.
        part: int8[n], a Part.
        call: int64[n], the row of the launching call; UNKNOWN: the trace does not hold it.
        call_begin_ns, call_end_ns: int64[n]; BEFORE_RECORDING, NEVER_SEEN.
        call_thread: int32[n], UNKNOWN with an unknown call.
    """

    index: int
    rows: NDArray[np.int64]
    events: Events
    part: NDArray[np.int8]
    call: NDArray[np.int64]
    call_begin_ns: NDArray[np.int64]
    call_end_ns: NDArray[np.int64]
    call_thread: NDArray[np.int32]


def device_events(trace: Trace, training_thread: int, comm_kernels: str | None = None) -> tuple[DeviceEvents, ...]:
    """Return what ran on each device, by index; without devices, what ran on the HOST; empty where nothing did.

    `comm_kernels` as in `parts`.
    """
    rows = trace.rows(*ON_DEVICE)
    rows = rows[trace.events.device[rows] != UNKNOWN]
    if len(rows):
        return _on_devices(trace, rows, comm_kernels)
    host = _on_host(trace, training_thread)
    return (host,) if len(host.rows) else ()


def _on_devices(trace: Trace, rows: NDArray[np.int64], comm_kernels: str | None) -> tuple[DeviceEvents, ...]:
    events = trace.events
    rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
    part, call, unseen = parts(trace, comm_kernels)[rows], launches(events, rows), _launched_unseen(events, rows)
    by_device = [(int(index), events.device[rows] == index) for index in np.unique(events.device[rows])]
    return tuple(
        _joined(trace, index, rows[on], part=part[on], call=call[on], unseen=unseen[on]) for index, on in by_device
    )


def _launched_unseen(events: Events, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return when each event was launched if its call is not in the trace.

    Correlations are handed out in order, so one lower than any recorded is of a call before the recording.
    """
    recorded = events.correlation[events.kind == Kind.RUNTIME]
    first = np.min(recorded, where=recorded != UNKNOWN, initial=_INT64.max)
    asked = events.correlation[rows]
    is_before = (asked != UNKNOWN) & (asked < first) & (first != _INT64.max)
    return np.where(is_before, BEFORE_RECORDING, NEVER_SEEN)


def _on_host(trace: Trace, training_thread: int) -> DeviceEvents:
    events = trace.events
    rows = trace.rows(Kind.CPU_OP, Kind.ANNOTATION)
    rows = rows[np.argsort(events.begin_ns[rows], kind="stable")]
    is_comm = trace.named(marks.HOST_COMM)[events.name[rows]]
    # Files of 2021 have no annotations: there the loop's own spans are operators.
    is_operator = (events.kind[rows] == Kind.CPU_OP) & ~trace.named(marks.OF_LOOP)[events.name[rows]]
    is_compute = is_operator & (events.thread[rows] == training_thread)
    operators = rows[is_operator & trace.named(marks.COMM_CALL)[events.name[rows]]]
    call = rows.copy()
    call[is_comm] = queued_by(trace, rows[is_comm], operators)
    part = np.where(is_comm, Part.COMM, Part.COMPUTE).astype(np.int8)
    used, spans = _cut(events.spans_of(rows), is_comm, is_compute, waits(trace, training_thread))
    unseen = np.full(len(used), NEVER_SEEN, np.int64)
    found = _joined(trace, HOST, rows[used], part=part[used], call=call[used], unseen=unseen)
    return replace(found, events=replace(found.events, begin_ns=spans[:, 0], end_ns=spans[:, 1]))


def _cut(
    spans: Spans, is_comm: NDArray[np.bool_], is_compute: NDArray[np.bool_], waiting: Spans
) -> tuple[NDArray[np.int64], Spans]:
    """Return which of the spans count, and from when to when; of those that compute, the pieces without waiting."""
    comm, compute = np.flatnonzero(is_comm), np.flatnonzero(is_compute)
    index, parts = pieces(spans[compute], complement(waiting))
    used, kept = np.concatenate((comm, compute[index])), np.concatenate((spans[comm], parts))
    order = np.argsort(kept[:, 0], kind="stable")
    return used[order], kept[order]


def _joined(
    trace: Trace,
    index: int,
    rows: NDArray[np.int64],
    *,
    part: NDArray[np.int8],
    call: NDArray[np.int64],
    unseen: NDArray[np.int64],
) -> DeviceEvents:
    events, is_known = trace.events, call != UNKNOWN
    return DeviceEvents(
        index=index,
        rows=rows,
        events=events[rows],
        part=part,
        call=call,
        call_begin_ns=np.where(is_known, events.begin_ns[call], unseen),
        call_end_ns=np.where(is_known, events.end_ns[call], unseen),
        call_thread=np.where(is_known, events.thread[call], np.int32(UNKNOWN)),
    )
