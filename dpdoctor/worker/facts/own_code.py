"""Where the script's own code spends the training thread's time: its stack, looked at again and again.

A thread of ours looks; it gets to it where the training thread lets go of the interpreter, within 5 ms at the latest.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable

from dpdoctor.records import LineShare
from dpdoctor.worker import lines

PERIOD_S = 0.001
MOST_LINES = 5


class OwnCode:
    """Looks from `start` to `stop` at the thread that starts it, whenever `is_outside` says that no phase is open.

    `is_training`: whether a forward pass of this step has begun.
    """

    def __init__(self, is_outside: Callable[[], bool], is_training: Callable[[], bool]) -> None:
        self._is_outside = is_outside
        self._is_training = is_training
        self._counts: Counter[str] = Counter()
        self._in_training: Counter[str] = Counter()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look at the calling thread."""
        watched = threading.get_ident()
        self._thread = threading.Thread(target=self._look, args=(watched,), name="dpdoctor own code", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def found(self) -> tuple[LineShare, ...]:
        """Return the lines that it was seen at most often, each with its share of all looks outside of phases."""
        every = self._counts.total()
        return tuple(
            LineShare(line=line, share=count / every, training=self._in_training[line] / count)
            for line, count in self._counts.most_common(MOST_LINES)
        )

    def _look(self, watched: int) -> None:
        while not self._stopping.wait(PERIOD_S):
            frame = sys._current_frames().get(watched) if self._is_outside() else None
            line = lines.of_users(frame) if frame is not None else None
            if line is not None:
                self._counts[line] += 1
                self._in_training[line] += self._is_training()
