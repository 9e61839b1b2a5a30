"""What a rank takes of the host's cores, so that too many threads for them are seen as facts."""

from __future__ import annotations

import contextlib
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver

import psutil

from dpdoctor.records import CpuUse


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
        wall_s=time.monotonic(),
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
