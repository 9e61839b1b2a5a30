"""Leaving a process without taking torch apart, which takes about a second and which nobody waits for."""

from __future__ import annotations

import atexit
import os
import sys
import weakref


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


# To be imported before torch: what was registered first runs last.
LEAVING = Leaving()
