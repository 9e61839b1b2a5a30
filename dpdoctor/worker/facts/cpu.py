"""The host's cores as a rank has them: what it takes of them, how fast one computes, how long it waits for one.

Too many threads for them, a slow core and a busy machine are so told from a slow script and a slow disk.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver
from threading import get_ident
from time import monotonic, thread_time_ns

import psutil

from dpdoctor.records import CpuUse

# About 0.2 ms of integer arithmetic in the processor's cache, which never lets go of the interpreter.
_MODULUS = (1 << 1024) - 159
_EXPONENT = (1 << 64) - 1
_TIMES = 5
# Of the thread that opens it: ns on a core, ns waiting for one, turns (Linux, Documentation/scheduler/sched-stats).
_SCHEDSTAT = "/proc/thread-self/schedstat"
# Less than this between wall and CPU time is what reading two clocks one after the other may make.
_LEAST_IDLE_NS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """All but `wall_s` and `num_threads` count from the process's birth."""

    wall_s: float
    cpu_s: float
    workers_cpu_s: float
    involuntary_switches: int
    voluntary_switches: int
    num_threads: int


class CpuMeter:
    """Adds up stretches between `begin` and `end`; a stretch that was begun and not ended is left out."""

    def __init__(self) -> None:
        self._begun: _Reading | None = None
        self._stretches: list[tuple[_Reading, _Reading]] = []

    def begin(self) -> None:
        """Begin a stretch."""
        self._begun = _read()

    def end(self) -> None:
        """End the stretch, if one was begun."""
        if self._begun is not None:
            self._stretches.append((self._begun, _read()))
            self._begun = None

    def use(self) -> CpuUse | None:
        """Return what was used in all stretches together; None before the first ended."""
        if not self._stretches:
            return None
        last = self._stretches[-1][1]
        # A process that trained has waited for something: a kernel that never saw it wait does not count.
        counts = bool(last.voluntary_switches or last.involuntary_switches)
        return CpuUse(
            cpu_s=self._sum(lambda reading: reading.cpu_s),
            workers_cpu_s=self._sum(lambda reading: reading.workers_cpu_s),
            wall_s=self._sum(lambda reading: reading.wall_s),
            involuntary_switches=int(self._sum(lambda reading: reading.involuntary_switches)) if counts else None,
            num_threads=last.num_threads,
        )

    def _sum(self, counter: Callable[[_Reading], float]) -> float:
        return sum(counter(end) - counter(begin) for begin, end in self._stretches)


def _read() -> _Reading:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return _Reading(
        wall_s=monotonic(),
        cpu_s=own.ru_utime + own.ru_stime,
        workers_cpu_s=_workers_cpu_s(),
        involuntary_switches=own.ru_nivcsw,
        voluntary_switches=own.ru_nvcsw,
        num_threads=psutil.Process().num_threads(),
    )


def _workers_cpu_s() -> float:
    """Return the CPU time of all processes that this one ever started: those that ended, and the workers that live.

    What a fork server started for it ends as a child of that one.
    """
    # First, because it collects those that have just ended.
    workers = multiprocessing.active_children()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    for worker in workers:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(worker.pid).cpu_times()
            total += times.user + times.system
    if (server := getattr(forkserver._forkserver, "_forkserver_pid", None)) is not None:
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(server).cpu_times()
            total += times.children_user + times.children_system
    return total


def core_benchmark_ns() -> int:
    """Return the CPU time in ns that a fixed piece of arithmetic takes on this core, the median of some; it takes 1 ms.

    It is longer on a lower clock, and while something else computes on the core's other hardware thread. What the
    thread waits for a core is not in it.
    """
    taken = []
    for _ in range(_TIMES):
        begin_ns = thread_time_ns()
        pow(3, _EXPONENT, _MODULUS)
        taken.append(thread_time_ns() - begin_ns)
    return statistics.median_high(taken)


class CoreQueue:
    """The wait of the thread that makes this."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._process = os.getpid()
        try:
            self._file = os.open(_SCHEDSTAT, os.O_RDONLY)
        except OSError:
            self._file = -1

    @property
    def tells(self) -> bool:
        """Return whether the kernel tells the calling thread's wait."""
        return self._file >= 0 and get_ident() == self._thread

    def waited_ns(self) -> int:
        """Return ns since the thread began; always 0 where the kernel does not tell, and in any other thread."""
        if self._file < 0 or get_ident() != self._thread:
            return 0
        try:
            return int(os.pread(self._file, 64, 0).split()[1])
        except (OSError, ValueError, IndexError):  # the script closed every file it found open
            return 0

    def __del__(self) -> None:
        # In a forked child the number may be another file's by now.
        if self._file >= 0 and os.getpid() == self._process:
            with contextlib.suppress(OSError):
                os.close(self._file)


class Waits:
    """Laps of the thread that takes the first: what it computed in each, and how long it waited for a core.

    A lap that was spent computing had no wait: then the kernel is not asked, which costs as much as all else that is
    done for a batch.

    Attributes:
        lets_pass: whether whoever takes laps is to take none.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.lets_pass = False
        self._queue: CoreQueue | None = None
        self._at_ns = self._cpu_ns = self._waited_ns = 0
        self._thread = 0

    def lap(self) -> tuple[int, int, int, int]:
        """End a lap: return its CPU time and wait, when it ended and when the next began, in ns.

        To ask the kernel takes time, which lies between the two. In the first lap, and in any other thread, CPU time
        and wait are 0.
        """
        now_ns, cpu_ns = self._clock(), thread_time_ns()
        if self._queue is None:
            self._queue, self._thread = CoreQueue(), get_ident()
            self._waited_ns = self._queue.waited_ns()
            self.skip()
            return 0, 0, now_ns, self._at_ns
        if self._thread != get_ident():
            return 0, 0, now_ns, now_ns
        used_ns = cpu_ns - self._cpu_ns
        idle_ns = now_ns - self._at_ns - used_ns
        self._at_ns, self._cpu_ns = now_ns, cpu_ns
        if idle_ns < _LEAST_IDLE_NS:
            return used_ns, 0, now_ns, now_ns
        before_ns, self._waited_ns = self._waited_ns, self._queue.waited_ns()
        self.skip()
        return used_ns, min(max(0, self._waited_ns - before_ns), idle_ns), now_ns, self._at_ns

    def skip(self) -> None:
        """End a lap that nobody asks about; a wait in it may show in the next, up to the next's time off the core."""
        if self._queue is not None and self._thread == get_ident():
            self._at_ns, self._cpu_ns = self._clock(), thread_time_ns()
