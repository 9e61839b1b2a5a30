"""The training loop: its thread, each step as the host ran it, and as each device saw it.

The host runs ahead, so the two are not at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution import marks
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.host_events import is_inside
from dpdoctor.attribution.intervals import Spans
from dpdoctor.digest import HOST
from dpdoctor.trace.model import UNKNOWN, Kind, Trace

NO_STEPS = "none"
_BY_PROFILER = "ProfilerStep"
_BY_OPTIMIZER = "Optimizer.step"


class HostSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The n steps on the host, in their order.

    Attributes:
        source: what they were read from: ProfilerStep, Optimizer.step, none.
        thread: the training thread, index into Trace.threads; UNKNOWN: the trace has no host events.
        numbers: int64[n], as in ProfilerStep#n, else counted from 0.
        spans: int64[n, 2], disjoint; they may touch.
    """

    source: str
    thread: int
    numbers: NDArray[np.int64]
    spans: Spans

    def of(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of the step that each time is in; -1: in none."""
        found = np.searchsorted(self.spans[:, 0], times, side="right") - 1
        if not len(self.spans):
            return found
        return np.where((found >= 0) & (times < self.spans[found, 1]), found, -1)


def host_steps(trace: Trace) -> HostSteps:
    """Return the steps: the profiler's, else from the end of one update to the end of the next."""
    thread = training_thread(trace)
    for source, find in ((_BY_PROFILER, _profiler_steps), (_BY_OPTIMIZER, _optimizer_steps)):
        numbers, spans = find(trace, thread)
        if len(numbers):
            return HostSteps(source=source, thread=thread, numbers=numbers, spans=spans)
    none = np.empty(0, np.int64)
    return HostSteps(source=NO_STEPS, thread=thread, numbers=none, spans=none.reshape(0, 2))


def training_thread(trace: Trace) -> int:
    """Return the thread that runs the training loop, as index into Trace.threads.

    It has the profiler's steps, else the optimizer's; else it is the main thread of its process, else the one with
    most operators. UNKNOWN: there are no host events.
    """
    events = trace.events
    for rows in (_marked(trace, marks.PROFILER_STEP), _updates(trace)):
        if len(rows):
            return _most_common(events.thread[rows])
    threads = events.thread[events.kind == Kind.CPU_OP]
    if not len(threads):
        threads = events.thread[events.kind > Kind.MEMSET]
    is_main = np.array([thread.tid == thread.pid for thread in trace.threads], bool)
    mains = threads[is_main[threads]] if len(threads) else threads
    return _most_common(mains if len(mains) else threads)


def _most_common(threads: NDArray[np.int32]) -> int:
    return int(np.argmax(np.bincount(threads))) if len(threads) else UNKNOWN


def _marked(trace: Trace, pattern: str) -> NDArray[np.int64]:
    """Return the rows of the host's spans of a name; the files of 2021 call them operators."""
    rows = trace.rows(Kind.CPU_OP, Kind.ANNOTATION)
    return rows[trace.named(pattern)[trace.events.name[rows]]]


def _updates(trace: Trace) -> NDArray[np.int64]:
    """Return the rows of the optimizers' steps but for those in a backward pass, which update a parameter each."""
    events, rows = trace.events, _marked(trace, marks.OPTIMIZER_STEP)
    return rows[~is_inside(events, _marked(trace, marks.BACKWARD), events.thread[rows], events.begin_ns[rows])]


def _profiler_steps(trace: Trace, thread: int) -> tuple[NDArray[np.int64], Spans]:
    rows = _marked(trace, marks.PROFILER_STEP)
    rows = rows[trace.events.thread[rows] == thread]
    spans = trace.events.spans_of(rows)
    order = np.argsort(spans[:, 0], kind="stable")
    spans = spans[order]
    spans[:-1, 1] = np.minimum(spans[:-1, 1], spans[1:, 0])
    numbers = [int(trace.names[name].rpartition("#")[2]) for name in trace.events.name[rows[order]].tolist()]
    return np.array(numbers, np.int64), spans


def _optimizer_steps(trace: Trace, thread: int) -> tuple[NDArray[np.int64], Spans]:
    """A step is one update of the optimizer that updates most; with several alike, of the one that does so last.

    Those of one class bear one name: updates between which no backward pass ran are of one step.
    """
    events, rows = trace.events, _updates(trace)
    rows = rows[events.thread[rows] == thread]
    rows = rows[np.argsort(events.end_ns[rows], kind="stable")]
    if not len(rows):
        return np.empty(0, np.int64), np.empty((0, 2), np.int64)
    counts = np.bincount(events.name[rows])
    most = [name for name in events.name[rows].tolist() if counts[name] == counts.max()]
    rows = rows[events.name[rows] == most[-1]]
    backward = np.sort(events.begin_ns[_marked(trace, marks.BACKWARD)])
    if len(backward):
        rows = rows[np.append(np.diff(np.searchsorted(backward, events.begin_ns[rows])) > 0, True)]
    ends = events.end_ns[rows]
    return np.arange(len(ends) - 1), np.stack((ends[:-1], ends[1:]), axis=1)


class StepWindows(msgspec.Struct, frozen=True, kw_only=True):
    """The k whole steps on one device.

    Attributes:
        numbers: int64[k], as HostSteps has them.
        spans: int64[k, 2], disjoint; they touch where the host's steps do.
    """

    numbers: NDArray[np.int64]
    spans: Spans


def step_windows(steps: HostSteps, device: DeviceEvents) -> StepWindows:
    """Return from when to when each step was on a device; on the HOST, the host's own steps.

    A step begins when the last kernel launched before it ends, and ends when the last one launched in it does; a step
    without a kernel of its own is none. The first, which the start of the profiler slows, and the last, whose tail may
    be cut, are left out where a step remains; and all that launched a kernel which the trace does not hold, with those
    after them, as nobody knows when they began.
    """
    spans = steps.spans if device.index == HOST else _launched_within(steps.spans, device)
    rows = np.flatnonzero(spans[:, 0] < spans[:, 1])
    rows = rows[1:-1] if len(rows) > 2 else rows[-1:]
    before, end = steps.spans[np.maximum(rows - 1, 0), 0], steps.spans[rows, 1]
    rows = rows[np.searchsorted(device.lost_ns, before) == np.searchsorted(device.lost_ns, end)]
    return StepWindows(numbers=steps.numbers[rows], spans=spans[rows])


def _launched_within(host: Spans, device: DeviceEvents) -> Spans:
    kernels = np.flatnonzero(device.events.kind == Kind.KERNEL)
    order = kernels[np.argsort(device.call_begin_ns[kernels], kind="stable")]
    launched = device.call_begin_ns[order]
    end = np.maximum.accumulate(device.events.end_ns[order])
    num_before = np.searchsorted(launched, host)  # int64[k, 2]
    edges = np.concatenate(([np.iinfo(np.int64).min], end))[num_before]
    edges[:, 0] = np.where(num_before[:, 0] > 0, edges[:, 0], host[:, 0])
    return edges


def whole_steps(steps: HostSteps, observed: Sequence[DeviceEvents]) -> Spans:
    """Return int64[k, 2]: when the host ran the steps that are whole on some device, as `step_windows` judges."""
    numbers = [step_windows(steps, device).numbers for device in observed]
    return steps.spans[np.isin(steps.numbers, np.concatenate([np.empty(0, np.int64), *numbers]))]
