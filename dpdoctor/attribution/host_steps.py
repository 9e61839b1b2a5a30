"""The training loop as the host ran it: its thread, and from when to when each step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution import marks
from dpdoctor.attribution.intervals import Spans
from dpdoctor.trace.columns import UNKNOWN, Kind
from dpdoctor.trace.model import Trace

NO_STEPS = "none"
_BY_PROFILER = "ProfilerStep"
_BY_OPTIMIZER = "Optimizer.step"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSteps:
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
    for pattern in (marks.PROFILER_STEP, marks.OPTIMIZER_STEP):
        rows = _marked(trace, pattern)
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


def _profiler_steps(trace: Trace, thread: int) -> tuple[NDArray[np.int64], Spans]:
    rows = _marked(trace, marks.PROFILER_STEP)
    rows = rows[trace.events.thread[rows] == thread]
    spans = trace.events.spans[rows]
    order = np.argsort(spans[:, 0], kind="stable")
    spans = spans[order]
    spans[:-1, 1] = np.minimum(spans[:-1, 1], spans[1:, 0])
    numbers = [int(trace.names[name].rpartition("#")[2]) for name in trace.events.name[rows[order]].tolist()]
    return np.array(numbers, np.int64), spans


def _optimizer_steps(trace: Trace, thread: int) -> tuple[NDArray[np.int64], Spans]:
    """A step is one update of the optimizer that updates most; with several alike, of the one that does so last."""
    events = trace.events
    rows = _marked(trace, marks.OPTIMIZER_STEP)
    rows = rows[events.thread[rows] == thread]
    rows = rows[np.argsort(events.end_ns[rows], kind="stable")]
    if not len(rows):
        return np.empty(0, np.int64), np.empty((0, 2), np.int64)
    counts = np.bincount(events.name[rows])
    most = [name for name in events.name[rows].tolist() if counts[name] == counts.max()]
    ends = events.end_ns[rows][events.name[rows] == most[-1]]
    return np.arange(len(ends) - 1), np.stack((ends[:-1], ends[1:]), axis=1)
