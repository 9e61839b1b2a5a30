"""Leaving a process without taking torch apart, which takes about a second and which nobody waits for."""

from __future__ import annotations

import atexit
import os
import sys


class Leaving:
    """Ends this process after everything else that was registered to run at exit, once `code` is set.

    To be made before torch is imported: what was registered first runs last. By then Python has waited for threads.
    What it would still do is to collect every object: only a file that the script neither closed nor flushed misses it.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        self._pid = os.getpid()
        atexit.register(self._leave)

    def _leave(self) -> None:
        # A process that the script forked leaves on its own.
        if self.code is None or os.getpid() != self._pid:
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(self.code)
