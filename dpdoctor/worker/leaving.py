"""How a process ends: with whoever started it, and without taking torch apart.

To take torch apart takes about a second, for which nobody waits. To be imported before torch.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import weakref

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, which nobody else would do where that is killed.

    Leave at once where it has just died.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class Leaving:
    """Ends a process after everything else that was registered to run at exit, once it has a code to leave with.

    By then Python has waited for threads. What it would still do is to collect every object: only a file that the
    script neither closed nor flushed misses it.
    """

    def __init__(self) -> None:
        self._code: int | None = None
        self._pid = 0
        atexit.register(self._leave)

    def with_code(self, code: int) -> None:
        """Have this process, and none that it forks, leave with an exit code."""
        self._code, self._pid = code, os.getpid()
        _leave_operators_registered()

    def _leave(self) -> None:
        if self._code is None or os.getpid() != self._pid:
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(self._code)


def _leave_operators_registered() -> None:
    """Have torch's libraries not take back, at exit, each operator that they registered."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        alive = finalizer.peek()
        if alive and getattr(alive[1], "__module__", None) == "torch.library":
            finalizer.atexit = False


# What was registered first runs last.
LEAVING = Leaving()
