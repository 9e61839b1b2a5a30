"""Where the host's time goes: a stack of phases with exclusive times."""

from __future__ import annotations

from collections.abc import Callable

from dpdoctor.records import PHASES

DATA_WAIT, H2D, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))


class PhaseClock:
    """Charges every nanosecond to the phase on top of the stack; what no phase claims is `other`.

    Nested phases (a forward inside an LBFGS closure inside the optimizer) are charged to the innermost.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._stack = [OTHER]
        self._totals = [0] * len(PHASES)
        self._since = clock()
        self._begin = self._since
        self.num_calls = 0

    def push(self, phase: int) -> int:
        """Enter a phase and return the depth to hand to `pop`."""
        now = self._clock()
        self._totals[self._stack[-1]] += now - self._since
        self._since = now
        self._stack.append(phase)
        self.num_calls += 1
        return len(self._stack) - 1

    def pop(self, depth: int) -> None:
        """Leave the phase entered at `depth`, and whatever an exception left open above it."""
        now = self._clock()
        self._totals[self._stack[-1]] += now - self._since
        self._since = now
        del self._stack[max(depth, 1) :]

    def lap(self) -> tuple[int, int, tuple[int, ...]]:
        """End a step: return its begin, its duration and its time per phase in ns, and begin the next."""
        now = self._clock()
        self._totals[self._stack[-1]] += now - self._since
        begin, phases = self._begin, tuple(self._totals)
        self._stack = [OTHER]
        self._totals = [0] * len(PHASES)
        self._since = self._begin = now
        return begin, now - begin, phases
