"""Ctrl-C, SIGTERM and SIGHUP while a command launches: noted, so that ranks are ended and what they recorded is kept.

Nothing is raised wherever the command happens to be. Whoever waits looks here; a second signal changes nothing, but for
a job that goes on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Iterator
from types import FrameType

import msgspec

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}

# One interruption may be several signals: both the kernel and the shell send one when a terminal closes.
_AT_ONCE_S = 1.0


class Interruption(msgspec.Struct):
    """The first of these signals, once there was one, at `at_s`; `insists`: another came later than at once."""

    signum: int | None = None
    at_s: float = 0.0
    insists: bool = False

    @property
    def name(self) -> str:
        """Return what a person calls it; empty: nothing was heard."""
        return "" if self.signum is None else _NAMES[signal.Signals(self.signum)]

    @property
    def exit_code(self) -> int:
        """Return the exit code by which a shell knows that this signal ended a command; 0: nothing was heard."""
        return 0 if self.signum is None else 128 + self.signum


_present: list[Interruption] = []


@contextlib.contextmanager
def heeding() -> Iterator[Interruption]:
    """Note these signals while the context lasts; inside of another such context, its interruption is given.

    One that is ignored, as by nohup, stays ignored.
    """
    if _present:
        yield _present[0]
        return
    heard = Interruption()

    def note(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's signature
        now = time.monotonic()
        if heard.signum is None:
            heard.signum, heard.at_s = signum, now
        heard.insists |= now - heard.at_s > _AT_ONCE_S
        if signum == signal.SIGHUP:
            _let_go_of_terminal()

    heeded = [signum for signum in _NAMES if signal.getsignal(signum) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, note) for signum in heeded}
    _present.append(heard)
    try:
        yield heard
    finally:
        _present.clear()
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _let_go_of_terminal() -> None:
    """Print nowhere from now on, where that was a terminal: it is gone, and the next line would be an error."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
