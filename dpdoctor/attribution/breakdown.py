"""Where the time of a device went: five parts that add up to it, of which idle time is told by its cause.

A device had nothing to do because of what the host thread was doing that launched what came next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution import marks
from dpdoctor.attribution.device_events import DeviceEvents, Part, collective_waits
from dpdoctor.attribution.intervals import (
    Spans,
    clip,
    complement,
    contains,
    exclusive,
    intersect,
    lengths_within,
    merge,
    subtract,
)
from dpdoctor.digest import HOST, Breakdown
from dpdoctor.trace.model import UNKNOWN, Kind, Trace


class Occupancy(msgspec.Struct, frozen=True, kw_only=True):
    """When a device did what: sets of times.

    Attributes:
        exclusive: by Part, each without the times of the parts before it: beside compute, all is compute.
        comm: all communication, hidden or not.
        busy: whenever anything ran.
    """

    exclusive: tuple[Spans, ...]
    comm: Spans
    busy: Spans

    def idle(self, windows: Spans) -> Spans:
        """Return when nothing ran, from the begin of the first window to the end of the last."""
        if not len(windows):
            return merge()
        return clip(complement(self.busy), int(windows.min()), int(windows.max()))

    def breakdowns(self, windows: Spans) -> tuple[Breakdown, ...]:
        """Return the parts of each window."""
        parts = np.stack([lengths_within(spans, windows) for spans in (*self.exclusive, self.comm)])
        free = lengths_within(self.idle(windows), windows)
        total = windows[:, 1] - windows[:, 0]
        if not np.array_equal(parts[: len(Part)].sum(axis=0) + free, total):
            raise AssertionError("the parts of the breakdown do not add up to the window")
        return tuple(
            Breakdown(compute_ns=compute, exposed_comm_ns=exposed, h2d_ns=h2d, copy_ns=copy, idle_ns=idle, comm_ns=comm)
            for compute, exposed, h2d, copy, comm, idle in zip(*parts.tolist(), free.tolist(), strict=True)
        )


def occupancy(device: DeviceEvents) -> Occupancy:
    """Return when a device did what (the algebra of TraceLens: compute hides communication hides copies)."""
    sets = [merge(device.events.spans_of(device.part == part)) for part in Part]
    return Occupancy(exclusive=tuple(exclusive(sets)), comm=sets[Part.COMM], busy=merge(*sets))


def whole_span(device: DeviceEvents) -> Spans:
    """Return int64[1, 2]: from the begin of the first event to the end of the last."""
    return np.array([[device.events.begin_ns.min(), device.events.end_ns.max()]], np.int64)


# A gap before something that was launched in time is the device's own latency when it is no longer than twice the usual
# gap between two such kernels of a stream, within these limits; a longer one waits for something.
_LATENCY_NS = (2_000, 10_000)
_LAUNCHING = {"optimizer", "dispatch"}


def idle_by_cause(
    gaps: Spans, device: DeviceEvents, activities: Mapping[int, Activity], training_thread: int
) -> dict[str, Spans]:
    """Return the gaps by cause: sets of times that are disjoint and add up to the gaps.

    Until the call that launched what ends a gap, it is the launching thread's activity, or where that shows none the
    training thread's; from then on it is launch latency. What was launched before the gap waits for the device.
    """
    found: defaultdict[str, list[Spans]] = defaultdict(list)
    if device.index == HOST:
        _book(gaps, [training_thread], activities, found)
    else:
        next_event = np.searchsorted(device.events.begin_ns, gaps[:, 1])
        called, thread = device.call_begin_ns[next_event], device.call_thread[next_event]
        is_early = device.call_end_ns[next_event] <= gaps[:, 0]
        is_short = gaps[:, 1] - gaps[:, 0] <= _usual_latency_ns(device)
        found["launch_latency"] += [gaps[is_early & is_short]]
        found["dependency"] += [gaps[is_early & ~is_short]]
        gaps, called, thread = gaps[~is_early], called[~is_early], thread[~is_early]
        called = np.clip(called, gaps[:, 0], gaps[:, 1])
        found["launch_latency"] += [np.stack((called, gaps[:, 1]), axis=1)]
        waits = np.stack((gaps[:, 0], called), axis=1)
        for launching in np.unique(thread).tolist():
            _book(merge(waits[thread == launching]), [launching, training_thread], activities, found)
    return {cause: merge(*spans) for cause, spans in found.items()}


def within(causes: Mapping[str, Spans], windows: Spans) -> list[dict[str, int]]:
    """Return for each window how long each cause lasted, those that did."""
    lengths = {cause: lengths_within(spans, windows).tolist() for cause, spans in causes.items()}
    return [{cause: ns[at] for cause, ns in lengths.items() if ns[at]} for at in range(len(windows))]


def _book(
    waits: Spans, threads: list[int], activities: Mapping[int, Activity], found: defaultdict[str, list[Spans]]
) -> None:
    """Add the host's times by cause. A host that waits for the device lets it run dry: launching anew is of that."""
    if threads[0] == UNKNOWN:
        found["unknown"] += [waits]
        return
    in_order = [activity for thread in dict.fromkeys(threads) for activity in activities[thread]]
    sync = merge(*(spans for cause, spans in in_order if cause == "sync"))
    ran_dry = contains(sync, waits[:, 0])
    for rest, is_dry in ((waits[~ran_dry], False), (waits[ran_dry], True)):
        left = rest
        for cause, spans in in_order:
            booked = "sync" if is_dry and cause in _LAUNCHING else cause
            found[booked] += [intersect(left, spans)]
            left = subtract(left, spans)
        found["python"] += [left]


def _usual_latency_ns(device: DeviceEvents) -> int:
    order = np.argsort(device.events.stream, kind="stable")
    stream, begin, end = (
        column[order] for column in (device.events.stream, device.events.begin_ns, device.events.end_ns)
    )
    queued = (stream[1:] == stream[:-1]) & (device.call_end_ns[order][1:] <= end[:-1]) & (begin[1:] >= end[:-1])
    between = (begin[1:] - end[:-1])[queued]
    lowest, highest = _LATENCY_NS
    return int(np.clip(2 * np.median(between), lowest, highest)) if len(between) else lowest


# Of one thread: causes of digest.IDLE_CAUSES with their times, the first that holds being the one that counts.
Activity = tuple[tuple[str, Spans], ...]

# Not aten::_local_scalar_dense, which asks for values of the host, too: of a device's a call of the driver waits.
SYNC = r"^(?:cuda|hip|cu|ze)\w*Synchronize|^ur\w*(?:Wait|Finish)|^(?:cudaMemcpy|hipMemcpy|hipMemcpyWithStream)$"
_ALLOCATOR = r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostFree|HostMalloc|HostRegister)|^cuMem(?!cpy|set)"
TO_HOST = r"DtoH|D2[HM]|DeviceToHost|Device -> (?:Host|Pageable|Pinned)"


def activities(trace: Trace, devices: Sequence[DeviceEvents], training_thread: int) -> dict[int, Activity]:
    """Return by thread what the training thread and each thread that launched something did."""
    events = trace.events
    causes = _causes(trace, _launch_times(devices))
    is_running = (events.kind == Kind.RUNTIME) | (events.kind == Kind.CPU_OP)
    is_running &= ~trace.named(marks.OF_LOOP)[events.name]  # which files of 2021 call operators
    is_phase = trace.named(marks.PHASE)[events.name] & (events.kind == Kind.ANNOTATION)
    on_host = np.flatnonzero(events.kind > Kind.MEMSET)
    backend = merge(events.spans_of(on_host[trace.named(marks.HOST_COMM)[events.name[on_host]]]))
    # A profiler of devices alone does not see operators: what lies between launches may as well be one.
    unseen = merge() if (events.kind > Kind.RUNTIME).any() else complement(merge())
    found: dict[int, Activity] = {}
    for thread in np.unique(np.concatenate([[training_thread], *(device.call_thread for device in devices)])).tolist():
        rows = on_host[events.thread[on_host] == thread]
        named = [(cause, merge(events.spans_of(rows[shows_it[rows]]))) for cause, shows_it in causes]
        found[thread] = (
            *named,
            ("dispatch", subtract(merge(events.spans_of(rows[is_running[rows]])), collective_waits(trace, thread))),
            ("comm_wait", backend),
            ("script", _outside(merge(events.spans_of(rows[is_phase[rows]])))),
            ("unknown", unseen),
        )
    return found


def _outside(phases: Spans) -> Spans:
    """Return the times between the phases of a step; none where the trace does not mark them."""
    return np.stack((phases[:-1, 1], phases[1:, 0]), axis=1)


def _launch_times(devices: Sequence[DeviceEvents]) -> NDArray[np.int64]:
    """Return when kernels were launched or, without a device, when operators ran, sorted."""
    is_work = [np.isin(device.events.kind, (Kind.KERNEL, Kind.CPU_OP)) for device in devices]
    times = [device.call_begin_ns[work] for device, work in zip(devices, is_work, strict=True)]
    return np.sort(np.concatenate([np.empty(0, np.int64), *times]))


def _causes(trace: Trace, launch_ns: NDArray[np.int64]) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return bool[n] by cause: which events show it, whatever their thread."""
    events = trace.events

    def named(pattern: str) -> NDArray[np.bool_]:
        return trace.named(pattern)[events.name]

    is_span = (events.kind == Kind.CPU_OP) | (events.kind == Kind.ANNOTATION)
    is_call = events.kind == Kind.RUNTIME
    is_comm_call = is_span & named(marks.COMM_CALL)
    is_scripts = (events.kind == Kind.ANNOTATION) & ~named(marks.NOT_SCRIPTS)
    asked = np.flatnonzero(is_comm_call | is_scripts)
    launches = np.zeros(len(events), bool)
    launches[asked] = np.diff(np.searchsorted(launch_ns, events.spans_of(asked)))[:, 0] > 0
    return [
        ("data", is_span & named(marks.LOADER)),
        ("sync", named(SYNC) | (is_call & _copies_to_host(trace))),
        ("allocator", is_call & named(_ALLOCATOR)),
        ("gc", named(marks.PYTHON_GC)),
        ("comm_wait", is_comm_call & ~launches),
        ("annotation", is_scripts & ~launches),
        ("optimizer", is_span & named(marks.OPTIMIZER_STEP)),
    ]


def _copies_to_host(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[n]: which events belong to a copy that the host waits for."""
    copies = trace.rows(Kind.MEMCPY)
    copies = copies[trace.named(TO_HOST)[trace.events.name[copies]]]
    correlations = trace.events.correlation[copies]
    return np.isin(trace.events.correlation, correlations[correlations != UNKNOWN])
