"""How long a thread waited for a core although it could run: what tells a busy machine from a slow disk."""

from __future__ import annotations

import contextlib
import os
from threading import get_ident
from time import thread_time_ns

# Of the thread that opens it: ns on a core, ns waiting for one, turns (Linux, Documentation/scheduler/sched-stats).
_FILE = "/proc/thread-self/schedstat"
# Less than this between wall and CPU time is what reading two clocks one after the other may make.
LEAST_IDLE_NS = 20_000


class CoreQueue:
    """The wait of the thread that makes this."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._process = os.getpid()
        try:
            self._file = os.open(_FILE, os.O_RDONLY)
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
    """

    def __init__(self) -> None:
        self._queue: CoreQueue | None = None
        self._at_ns = self._cpu_ns = self._waited_ns = 0
        self._thread = 0

    def lap(self, now_ns: int) -> tuple[int, int]:
        """Return CPU time and wait since the last lap, in ns; zeros for the first, and in any other thread."""
        cpu_ns = thread_time_ns()
        if self._queue is None:
            self._queue, self._thread = CoreQueue(), get_ident()
            self._at_ns, self._cpu_ns, self._waited_ns = now_ns, cpu_ns, self._queue.waited_ns()
        if self._thread != get_ident():
            return 0, 0
        used_ns = cpu_ns - self._cpu_ns
        idle_ns = now_ns - self._at_ns - used_ns
        self._at_ns, self._cpu_ns = now_ns, cpu_ns
        if idle_ns < LEAST_IDLE_NS:
            return used_ns, 0
        before_ns, self._waited_ns = self._waited_ns, self._queue.waited_ns()
        return used_ns, min(max(0, self._waited_ns - before_ns), idle_ns)

    def skip(self, now_ns: int) -> None:
        """End a lap that nobody asks about; a wait in it may show in the next, up to the next's time off the core."""
        if self._queue is not None and self._thread == get_ident():
            self._at_ns, self._cpu_ns = now_ns, thread_time_ns()
