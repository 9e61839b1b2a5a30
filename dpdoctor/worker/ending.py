"""Ending a script that does not know it is watched: at one step on all ranks, and for good."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

# A bare `except:` may swallow the exception; after this many, or after this long, the process is ended.
MOST_SWALLOWED = 3
GRACE_S = 10.0


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
