"""Where the script's own code spends the training thread's time: its stack, looked at again and again.

A thread of ours looks; meanwhile the training thread lets go of the interpreter soon after it is asked to, as otherwise
only lines that wait for something would be seen.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Container
from dataclasses import dataclass
from types import FrameType

from dpdoctor.records import LineShare
from dpdoctor.worker.base import lines
from dpdoctor.worker.facts.call_tree import CallTree

PERIOD_S, LETS_GO_AFTER_S = 0.001, 0.0001
MOST_LINES = 5
# Fewer looks than this outside of phases say nothing about lines.
LEAST_LOOKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where in a step the script is. `gap` is PhaseClock's; the others say which part of LineShare it counts to."""

    gap: int
    is_training: bool = False
    is_preparing: bool = False


class OwnCode:
    """Looks from `start` to `stop` at the thread that starts it, whenever `moment` says that it is in no phase.

    What was seen in one of the gaps that are `claimed` by then belonged to a phase all the same. `calls` is shown what
    there is to see whether or not that is in a phase.
    """

    def __init__(
        self, moment: Callable[[], Moment | None], claimed: Container[int] = (), calls: CallTree | None = None
    ) -> None:
        self._moment = moment
        self._claimed = claimed
        self._calls = calls
        self._looks: defaultdict[tuple[str, str], list[Moment]] = defaultdict(list)
        self._driving: frozenset[lines.Place] = frozenset()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._switch_s = sys.getswitchinterval()

    def start(self) -> None:
        """Begin to look at the calling thread."""
        watched = threading.get_ident()
        sys.setswitchinterval(LETS_GO_AFTER_S)
        self._thread = threading.Thread(target=self._look, args=(watched,), name="dpdoctor own code", daemon=True)
        self._thread.start()

    def step_ended(self) -> None:
        """The thread that is looked at ends a step: lines that are under way now do not make up the loop."""
        self._driving = lines.under_way()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            sys.setswitchinterval(self._switch_s)

    def found(self) -> tuple[LineShare, ...]:
        """Return the lines that it was seen at most often, each with its share of all looks outside of phases.

        None where there were too few looks.
        """
        seen = {where: [m for m in looks if m.gap not in self._claimed] for where, looks in self._looks.items()}
        every = sum(map(len, seen.values()))
        if every < LEAST_LOOKS:
            return ()
        return tuple(
            LineShare(
                line=line,
                share=len(looks) / every,
                training=sum(look.is_training for look in looks) / len(looks),
                preparing=sum(look.is_preparing for look in looks) / len(looks),
                library=library,
            )
            for (line, library), looks in sorted(seen.items(), key=lambda item: -len(item[1]))[:MOST_LINES]
            if looks
        )

    def _look(self, watched: int) -> None:
        while not self._stopping.wait(PERIOD_S):
            moment = self._moment()
            if moment is None and self._calls is None:
                continue
            stack = frames(watched)
            if not stack:
                continue
            if self._calls is not None:
                self._calls.look(stack[0])
            where = lines.of_users(stack[0], self._driving) if moment is not None else None
            if moment is not None and where is not None:
                self._looks[where].append(moment)


def frames(thread: int) -> list[FrameType]:
    """Return the frames of a thread, the innermost first; empty where it has ended.

    Up to Python 3.11 to make a frame's object may set off a garbage collection, and a finalizer may let that thread run
    on: the object is then made of a frame that has ended, of memory that others use by now, and the process may die of
    it. So there is no collection while the objects of all frames are made, as in CPython's own `sys._current_frames`
    (its issue 106883), and while the list holds them, to walk the stack makes no more. From 3.12 on collections wait
    for the end of a bytecode.
    """
    is_collecting = gc.isenabled()
    if sys.version_info < (3, 12):
        gc.disable()
    try:
        found: list[FrameType] = []
        frame = sys._current_frames().get(thread)
        while frame is not None:
            found.append(frame)
            frame = frame.f_back
    finally:
        if is_collecting:
            gc.enable()
    return found
