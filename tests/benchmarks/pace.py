"""How fast busy cores compute, from moment to moment.

A core may be one of two threads of a processor's core whose other thread is somebody else's: beside a busy one it is
a third slower, and no count of processes or CPU time shows that. So a little work is timed again and again, on every
core, by the CPU time that it takes.
"""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType

import numpy as np
import psutil

EVERY_S = 0.1
SORTED = 20_000
TIMES = 8


class Pace:
    """Probes the cores from entering to leaving it, at about 1% of each."""

    def __init__(self) -> None:
        # When it was, what the probe took, and for what share of the time before it the core was busy.
        self._probes: list[tuple[int, int, float]] = []
        self._over = threading.Event()
        cores = sorted(os.sched_getaffinity(0))
        self._threads = [threading.Thread(target=self._probe, args=(core,), daemon=True) for core in cores]

    def __enter__(self) -> Pace:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _probe(self, core: int) -> None:
        os.sched_setaffinity(0, {core})
        numbers = np.random.default_rng(0).random(SORTED)
        at, idle_s = time.monotonic_ns(), _idle_s(core)
        while not self._over.wait(EVERY_S):
            before, before_s = at, idle_s
            at, idle_s = time.monotonic_ns(), _idle_s(core)
            busy = 1 - (idle_s - before_s) / (1e-9 * (at - before))
            for _ in range(TIMES):  # the caches may be full of something else
                np.sort(numbers)
            begin_ns = time.thread_time_ns()
            for _ in range(TIMES):
                np.sort(numbers)
            self._probes.append((at, time.thread_time_ns() - begin_ns, max(0.0, busy)))

    def slower(self, begin_ns: int, end_ns: int) -> float:
        """Return by what share busy cores were slower between two moments of the monotonic clock than at their best."""
        best = float(np.quantile([took for _, took, _ in self._probes], 0.05))
        found = [(took, busy) for at, took, busy in self._probes if begin_ns <= at <= end_ns]
        return sum(took * busy for took, busy in found) / sum(busy for _, busy in found) / best - 1


def _idle_s(core: int) -> float:
    times = psutil.cpu_times(percpu=True)[core]
    return times.idle + getattr(times, "iowait", 0.0)
