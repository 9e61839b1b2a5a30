"""What a host thread was doing when, as far as it explains why a device had nothing to do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution import marks
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.host_waits import waits
from dpdoctor.attribution.intervals import Spans, merge, subtract
from dpdoctor.trace.model import UNKNOWN, Kind, Trace

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
    found: dict[int, Activity] = {}
    for thread in np.unique(np.concatenate([[training_thread], *(device.call_thread for device in devices)])).tolist():
        rows = on_host[events.thread[on_host] == thread]
        named = [(cause, merge(events.spans_of(rows[shows_it[rows]]))) for cause, shows_it in causes]
        found[thread] = (
            *named,
            ("dispatch", subtract(merge(events.spans_of(rows[is_running[rows]])), waits(trace, thread))),
            ("comm_wait", backend),
            ("script", _outside(merge(events.spans_of(rows[is_phase[rows]])))),
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
