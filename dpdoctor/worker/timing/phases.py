"""Where the host's time goes: a stack of phases with exclusive times."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from typing import Any

from dpdoctor.records import ALL_PHASES, BETWEEN, PHASES
from dpdoctor.worker.facts.updates import Updates

ELSEWHERE = -1
DATA_WAIT, H2D, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))
COMMUNICATION = len(PHASES)
_BETWEEN = {(PHASES.index(a), PHASES.index(b)): PHASES.index(of) for (a, b), of in BETWEEN.items()}
_TRAINING = frozenset((FORWARD, BACKWARD, OPTIMIZER))


class PhaseClock:
    """Charges every nanosecond to the phase on top of the stack; what no phase claims is `other`.

    Nested phases (a forward inside an LBFGS closure inside the optimizer) are charged to the innermost; what lies
    between two phases of one step may be of one of them, as records.BETWEEN says. Between a backward and a forward it
    is the optimizer's where parameters changed meanwhile: the first step of SAM. It is the time of one thread, the one
    that trains: what a prefetching thread of the script does at the same moment is not charged.
    `num_calls` counts the phases entered in the present step.

    Attributes:
        gap: number of the present or the next stretch between two of forward, backward and update.
        claimed: the gaps that belong to a phase, of those that ended while phases were marked.
        has_fetched: whether a loader was asked in this gap.
        has_communication: whether `lap` tells the time of that phase, too, after those of PHASES.
        updates: tells whether parameters have changed; None: nobody knows.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._stack = [OTHER]
        self._totals = [0] * len(ALL_PHASES)
        self._since = clock()
        self._begin = self._since
        self._thread: int | None = None
        self._marker: Callable[[int], AbstractContextManager[Any]] | None = None
        # Of the phases that are open, the innermost last, each with its place in the stack.
        self._marks: list[tuple[int, AbstractContextManager[Any]]] = []
        self.num_calls = 0
        self._last: int | None = None
        self._other_before = 0
        self.gap = 0
        self.claimed: set[int] = set()
        self.has_fetched = self.has_communication = False
        self.updates: Updates | None = None

    def belongs_here(self) -> None:
        """Charge this thread from now on, and no other."""
        self._thread = get_ident()

    def is_elsewhere(self) -> bool:
        """Return whether the calling thread is another than the one that trains."""
        return self._thread is not None and self._thread != get_ident()

    def is_outside(self) -> bool:
        """Return whether no phase claims the present moment; any thread may ask."""
        return len(self._stack) == 1

    def is_in(self, phase: int) -> bool:
        """Return whether a phase is open."""
        return phase in self._stack

    def mark(self, marker: Callable[[int], AbstractContextManager[Any]] | None) -> None:
        """Hold what `marker` returns for a phase while that is open, from the next on; None: no more."""
        self._marker = marker
        if marker is None:
            self._unmark(0)

    def push(self, phase: int) -> int:
        """Enter a phase and return the depth to hand to `pop`; in another thread nothing happens."""
        if self._thread is not None and self._thread != get_ident():
            return ELSEWHERE
        now, stack = self._clock(), self._stack
        depth = len(stack)
        self._totals[stack[-1]] += now - self._since
        self._since = now
        if depth == 1 and self._last is not None and phase in _TRAINING:
            self._end_gap(self._last, phase)
        stack.append(phase)
        self.num_calls += 1
        if self._marker is not None and phase != COMMUNICATION:  # a trace shows it by itself
            mark = self._marker(phase)
            mark.__enter__()
            self._marks.append((depth, mark))
        return depth

    def pop(self, depth: int) -> None:
        """Leave the phase entered at `depth`, and whatever an exception left open above it."""
        if depth == ELSEWHERE:
            return
        now, stack = self._clock(), self._stack
        self._totals[stack[-1]] += now - self._since
        self._since = now
        depth = depth or 1
        if depth == 1 and len(stack) > 1:
            if stack[1] in _TRAINING:
                self._begin_gap(stack[1])
            elif stack[1] == DATA_WAIT:
                self.has_fetched = True
        del stack[depth:]
        if self._marks:
            self._unmark(depth)

    def _end_gap(self, last: int, phase: int) -> None:
        of = _BETWEEN.get((last, phase))
        if last == BACKWARD and phase == FORWARD and self.updates is not None and self.updates.changed():
            of = OPTIMIZER
        if of is not None:
            self._totals[of] += self._totals[OTHER] - self._other_before
            self._totals[OTHER] = self._other_before
            if self._marker is not None:
                self.claimed.add(self.gap)

    def _begin_gap(self, phase: int) -> None:
        self._last, self._other_before = phase, self._totals[OTHER]
        self.gap, self.has_fetched = self.gap + 1, False
        if phase == BACKWARD and self.updates is not None:
            self.updates.note()

    def lap(self) -> tuple[int, int, tuple[int, ...]]:
        """End a step: return its begin, its duration and its time per phase in ns, and begin the next.

        Phases that are open end with it: one that an exception left open must not swallow the steps that follow.
        """
        now = self._clock()
        self._totals[self._stack[-1]] += now - self._since
        begin, phases = self._begin, tuple(self._totals[: None if self.has_communication else len(PHASES)])
        self._stack = [OTHER]
        self._last, self._other_before = None, 0
        self.gap, self.has_fetched = self.gap + 1, False
        if self._marks:
            self._unmark(1)
        self._totals = [0] * len(ALL_PHASES)
        self._since = self._begin = now
        self.num_calls = 0
        return begin, now - begin, phases

    def _unmark(self, depth: int) -> None:
        while self._marks and self._marks[-1][0] >= depth:
            _, mark = self._marks.pop()
            mark.__exit__(None, None, None)
