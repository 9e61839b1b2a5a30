"""What ran on each device, what of it communicates, computes or copies, and which call of the host launched it.

Without a device the host itself is one: what its training thread computes, less its waiting for collectives.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dpdoctor.attribution import marks
from dpdoctor.attribution.host_events import host_rows, is_inside, launches, of_same_id, queued_by, running_at
from dpdoctor.attribution.intervals import (
    Spans,
    complement,
    contains,
    intersect,
    lengths_within,
    merge,
    pieces,
    subtract,
)
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
        lost_ns: int64[m], sorted, when kernels were launched, on any device, that the trace does not hold.
    """

    index: int
    rows: NDArray[np.int64]
    events: Events
    part: NDArray[np.int8]
    call: NDArray[np.int64]
    call_begin_ns: NDArray[np.int64]
    call_end_ns: NDArray[np.int64]
    call_thread: NDArray[np.int32]
    lost_ns: NDArray[np.int64]


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
    lost_ns = _lost_ns(trace)
    return tuple(
        _joined(trace, index, rows[on], part=part[on], call=call[on], unseen=unseen[on], lost_ns=lost_ns)
        for index, on in by_device
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
    used, spans = _cut(events.spans_of(rows), is_comm, is_compute, collective_waits(trace, training_thread))
    unseen, lost_ns = np.full(len(used), NEVER_SEEN, np.int64), np.empty(0, np.int64)
    found = _joined(trace, HOST, rows[used], part=part[used], call=call[used], unseen=unseen, lost_ns=lost_ns)
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
    lost_ns: NDArray[np.int64],
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
        lost_ns=lost_ns,
    )


_LAUNCH = r"LaunchKernel|LaunchCooperative|GraphLaunch"
# What is launched between them becomes a part of a graph, and does not run.
_BEGIN_CAPTURE, _END_CAPTURE = r"StreamBeginCapture", r"StreamEndCapture"


def _lost_ns(trace: Trace) -> NDArray[np.int64]:
    """Return when kernels were launched that the trace does not hold: recording ended before, or buffers were lost."""
    events, calls = trace.events, trace.rows(Kind.RUNTIME)

    def called_ns(pattern: str) -> NDArray[np.int64]:
        return np.sort(events.begin_ns[calls[trace.named(pattern)[events.name[calls]]]])

    launches = calls[trace.named(_LAUNCH)[events.name[calls]] & (events.correlation[calls] != UNKNOWN)]
    is_lost = ~np.isin(events.correlation[launches], events.correlation[trace.rows(*ON_DEVICE)])
    lost_ns = np.sort(events.begin_ns[launches[is_lost]])
    num_open = np.searchsorted(called_ns(_BEGIN_CAPTURE), lost_ns) - np.searchsorted(called_ns(_END_CAPTURE), lost_ns)
    return lost_ns[num_open <= 0]


class Part(IntEnum):
    """The classes of the budget, in the order in which they take time; memsets are compute."""

    COMPUTE = 0
    COMM = 1
    H2D = 2
    COPY = 3


# Of CUDA, ROCm, and XPU, where pageable memory is M.
_TO_DEVICE = r"HtoD|[HM]2D|HostToDevice|(?:Host|Pageable|Pinned) -> Device"


def parts(trace: Trace, comm_kernels: str | None = None) -> NDArray[np.int8]:
    """Return int8[n]: the Part of each event of a device, UNKNOWN for events of the host.

    `comm_kernels`: what kernels that communicate are called, too, as a regular expression.
    """
    events = trace.events
    is_kernel, is_copy = events.kind == Kind.KERNEL, events.kind == Kind.MEMCPY
    found = np.full(len(events), UNKNOWN, np.int8)
    found[is_kernel | (events.kind == Kind.MEMSET)] = Part.COMPUTE
    found[communicating(trace, comm_kernels)] = Part.COMM
    found[is_copy] = Part.COPY
    found[is_copy & trace.named(_TO_DEVICE)[events.name]] = Part.H2D
    return found


_Mask = NDArray[np.bool_]
_Rows = NDArray[np.int64]


# Searched for anywhere in a name, in any case: kernels are templates, so the word may stand far from the begin. The
# second line is torch's symmetric memory; not "symm" alone, which is also a matrix product of BLAS. The third is what
# NVSHMEM launches for its host calls, and Transformer Engine's, the last DeepEP, mangled or not: but not
# `cdpsk::ep::CUB_`, which are plain scans.
COMM_KERNEL = (
    r"nccl|rccl|cross_device_reduce|nvshmem|rocshmem|oneccl|msccl|"
    r"symmetric_memory|symm_mem|multimem_|(?:one|two)_shot_all_|"
    r"_on_stream_kernel|userbuffers|"
    r"(?<![a-z])(?:deep_ep|dpsk::ep::|dpsk2ep)"
)
_CALLS = (marks.COMM_CALL, marks.COMM_RECORD, marks.COMM_ANNOTATION)


def named_communication(trace: Trace, pattern: str | None) -> _Mask:
    """Return bool[n]: which events are kernels whose name is known, or that `pattern` finds something in."""
    is_named = trace.named(COMM_KERNEL)
    if pattern is not None:
        is_named = is_named | trace.named(pattern)
    return np.asarray((trace.events.kind == Kind.KERNEL) & is_named[trace.events.name])


def communicating(trace: Trace, pattern: str | None) -> _Mask:
    """Return bool[n]: which events are kernels that communicate, as far as the trace tells.

    Besides those of `named_communication`, what carries the metadata of a collective, and what the host's call of one
    launched, but not what an operator inside of that call did. Others of the same name are alike where nothing else
    launched any of them.
    """
    found = named_communication(trace, pattern)
    others = np.flatnonzero((trace.events.kind == Kind.KERNEL) & ~found)
    calls = [host_rows(trace, sign) for sign in _CALLS]
    if not len(others) or not (trace.collectives or any(map(len, calls))):
        return found
    launch = launches(trace.events, others)
    is_told = _described(trace)[others] | _launched_by(trace, calls, launch)
    is_told |= (launch == UNKNOWN) & _of_same_record(trace, others)
    names, num = trace.events.name[others], len(trace.names)
    told, launched = (np.bincount(names[which], minlength=num) for which in (is_told, is_told | (launch != UNKNOWN)))
    found[others] = is_told | ((told > 0) & (told == launched))[names]
    return found


def _described(trace: Trace) -> _Mask:
    described = np.zeros(len(trace.events), bool)
    described[[c.row for c in trace.collectives if c.name is not None]] = True
    return described


def _of_same_record(trace: Trace, rows: _Rows) -> _Mask:
    """Return bool[k]: which kernels have the external id of a record of a collective."""
    return np.asarray(of_same_id(trace, rows, host_rows(trace, marks.COMM_RECORD)) != UNKNOWN)


def _launched_by(trace: Trace, calls: list[_Rows], launch: _Rows) -> _Mask:
    """Return bool[k]: which launches are made by one of the calls itself."""
    events = trace.events
    threads, times = np.where(launch == UNKNOWN, UNKNOWN, events.thread[launch]), events.begin_ns[launch]
    is_made: _Mask = is_inside(events, np.concatenate(calls), threads, times)
    asked = np.flatnonzero(is_made)
    if len(asked):
        is_made[asked] = ~is_inside(events, _operators_within(trace, calls), threads[asked], times[asked])
    return np.asarray(is_made)


def _operators_within(trace: Trace, calls: list[_Rows]) -> _Rows:
    """Return the host's operators and annotations that lie in one of the calls and are none themselves."""
    events = trace.events
    host = np.setdiff1d(trace.rows(Kind.CPU_OP, Kind.ANNOTATION), np.concatenate(calls))
    is_within = np.zeros(len(host), bool)
    for rows in calls:
        around = running_at(events, rows, events.thread[host], events.begin_ns[host])
        # Times are in us at best: what is as long as the call may as well be around it.
        is_shorter = events.duration_ns[host] < events.duration_ns[around]
        is_within |= (around != UNKNOWN) & is_shorter & (events.end_ns[host] <= events.end_ns[around])
    return host[is_within]


def collective_waits(trace: Trace, thread: int) -> Spans:
    """Return when a thread was in a hook and in no operator that it called, waited for a functional collective, or was
    in an operator that called one and in no other, until it ended.

    In a backward pass the engine's own operators hold the hooks: they are no computing then. Of a device nobody waits
    here: work for it is queued.
    """
    hooks, called = _hooks(trace, thread)
    events, operators = trace.events, trace.rows(Kind.CPU_OP)
    is_wait = trace.named(marks.WAIT)[events.name[operators]] & (events.thread[operators] == thread)
    in_hooks = subtract(hooks, merge(events.spans_of(called)))
    return merge(in_hooks, events.spans_of(operators[is_wait]), _in_callers(trace, thread))


def _in_callers(trace: Trace, thread: int) -> Spans:
    """Return when a thread was in operators that hold calls of c10d, as autograd functions do, and in none inside.

    Only collectives that ended there, too, were waited for: DDP's hooks just begin theirs. Of functional ones it is
    known where they are waited for, and compiled regions that hold them compute.
    """
    events, operators = trace.events, trace.rows(Kind.CPU_OP)
    collectives = events.spans_of(host_rows(trace, marks.HOST_COMM))
    if not len(collectives):
        return merge()
    operators = operators[(events.thread[operators] == thread) & ~trace.named(marks.OF_LOOP)[events.name[operators]]]
    begin_ns, name = events.begin_ns[operators], events.name[operators]
    is_call = trace.named(marks.COMM_CALL)[name]
    functional = merge(events.spans_of(operators[trace.named(marks.FUNCTIONAL)[name]]))
    called_ns = np.sort(begin_ns[is_call & ~contains(functional, begin_ns)])
    num_before = np.searchsorted(called_ns, np.stack((begin_ns, events.end_ns[operators])))
    is_holder = ~is_call & (num_before[1] > num_before[0])
    holders, others = merge(events.spans_of(operators[is_holder])), merge(events.spans_of(operators[~is_holder]))
    is_held = lengths_within(holders, collectives) == collectives[:, 1] - collectives[:, 0]
    return intersect(subtract(holders, others), merge(collectives[is_held]))


def hook_calls(trace: Trace, thread: int) -> Spans:
    """Return when a hook was starting collectives on a thread."""
    _, called = _hooks(trace, thread)
    return merge(trace.events.spans_of(called[trace.named(marks.COMM_CALL)[trace.events.name[called]]]))


def _hooks(trace: Trace, thread: int) -> tuple[Spans, NDArray[np.int64]]:
    """Return when a thread was in hooks, and the rows of the operators that began there."""
    events, annotations = trace.events, trace.rows(Kind.ANNOTATION)
    is_hook = trace.named(marks.FSDP_HOOK)[events.name[annotations]] & (events.thread[annotations] == thread)
    hooks = merge(events.spans_of(annotations[is_hook]))
    operators = trace.rows(Kind.CPU_OP)
    operators = operators[events.thread[operators] == thread]
    return hooks, operators[contains(hooks, events.begin_ns[operators])]
