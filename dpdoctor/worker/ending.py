"""How a script and its process end: at one step on all ranks, with whoever started it, and at once.

The script does not know that it is watched, and may go on after it was told to stop. To take torch apart takes about a
second, for which nobody waits. To be imported before torch.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import NoReturn

# A bare `except:` may swallow the exception; after this many, or after this long, the process is ended.
MOST_SWALLOWED = 3
GRACE_S = 10.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, which nobody else would do where that is killed.

    Leave at once where it has just died.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class Stop(BaseException):
    """Unwinds the script. A BaseException, so that `except Exception` lets it through."""


class Leave(Stop, SystemExit):
    """Unwinds a script as its own end with success would: whoever started it looks at its exit code."""

    code = 0


class Ending:
    """Ends the script once its record is complete.

    `finish(status, reason)` writes the record before anything unwinds; `forced` notes that the process had to be ended.

    Attributes:
        raising: what unwinds the script.
    """

    def __init__(self, finish: Callable[[str, str | None], None], forced: Callable[[], None]) -> None:
        self._finish = finish
        self._forced = forced
        self._times_raised = 0
        self.raising: type[Stop] = Stop
        self.status: str | None = None
        self.reason: str | None = None

    @property
    def begun(self) -> bool:
        """Return whether the script has been told to stop."""
        return self.status is not None

    def stop(self, status: str, reason: str | None = None) -> NoReturn:
        """Complete the record and unwind the script.

        Raises:
            Stop: always.
        """
        if not self.begun:
            self.status, self.reason = status, reason
            self._complete(status, reason)
            threading.Thread(target=self._force_later, name="dpdoctor-ending", daemon=True).start()
        self._raise()

    def _complete(self, status: str, reason: str | None) -> None:
        try:
            self._finish(status, reason)
        except BaseException:
            # What rises through a script that was told to stop is its own affair, but not this: say it here.
            self.status = "failed"
            traceback.print_exc()
            raise

    def check(self) -> None:
        """Raise Stop again when the script goes on after it was told to stop."""
        if self.status is not None:
            self._raise()

    def _raise(self) -> NoReturn:
        self._times_raised += 1
        if self._times_raised > MOST_SWALLOWED:
            self._force()
        raise self.raising(self.reason or "dpdoctor has recorded enough")

    def _force_later(self) -> None:
        threading.Event().wait(GRACE_S)
        self._force()

    def _force(self) -> None:
        """End the process, whatever goes wrong on the way: a full disk, a closed stdout."""
        try:
            self._forced()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(0 if self.status == "ok" or self.raising is Leave else 1)


class LettingGo(Ending):
    """Completes the record of a script that is to go on, which is told nothing.

    Whoever moved it to the end of its recording catches the Stop, and takes the hooks away.
    """

    def stop(self, status: str, reason: str | None = None) -> NoReturn:
        """Complete the record.

        Raises:
            Stop: always.
        """
        if not self.begun:
            self.status, self.reason = status, reason
            self._complete(status, reason)
        raise Stop

    def check(self) -> None:
        """Let the script go on."""


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
