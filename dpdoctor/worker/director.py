"""Rank 0's decisions: what the next steps are for. Pure: facts in, a segment out."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from dpdoctor.spec import Recording

KINDS = ("warmup", "proof", "measure", "trace", "stop")
FULL = "full"

# A window shorter than this says more about the clock and its edges than about the script.
LEAST_STEPS = 4
LEAST_WINDOW_S = 0.5
# Warm-up ends when the last chunk's median step is within this share of the one before it.
STEADY_WITHIN = 0.05
LEAST_WARMUP_STEPS = 10
WARMUP_CHUNK_S = 0.2
# A script that never becomes steady may spend this share of its budget on trying.
MOST_WARMUP_SHARE = 0.25
# Fewer windows than this give no usable interval (Student's t is 12.7 at two); they run even when time is short.
LEAST_ROUNDS = 3
# The trace may take this share of the budget, at this many untraced steps for a traced one; never fewer than two steps.
MOST_TRACE_SHARE = 0.15
TRACED_STEP_COST = 2.0
LEAST_TRACE_STEPS = 2
MOST_SKIPPED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive steps between two edges: `skip` uncounted ones, then `num_steps` counted ones."""

    kind: str
    arm: str = FULL
    round: int = 0
    skip: int = 0
    num_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the ranks found in the segment that ends: the slowest rank's median step, the deepest loader queue."""

    step_s: float
    prefetch: int
    elapsed_s: float
    reference_changed: bool = False


class Director:
    """Plans warm-up, proof, rounds of windows, trace and stop. Lives on rank 0 only."""

    def __init__(self, recording: Recording, arms: tuple[str, ...], seed: int) -> None:
        self._recording = recording
        self._arms = arms
        self._random = random.Random(seed)
        self._warmup_medians: list[float] = []
        self._warmup_steps = 0
        self._arms_left: list[str] = []
        self._round = 0
        self._step_s = 0.0
        self.steady: bool | None = None

    def first(self) -> Segment:
        """Return the first warm-up chunk."""
        return Segment(
            kind="warmup", num_steps=self._recording.warmup or (1 if self._recording.explain else LEAST_STEPS)
        )

    def after(self, done: Segment, facts: Facts) -> Segment:
        """Return the segment that follows `done`."""
        if done.kind != "proof":
            self._step_s = facts.step_s  # the proof's only step ran under a profiler
        if done.kind == "warmup":
            return self._after_warmup(done, facts)
        if self._recording.explain or done.kind == "trace":
            return Segment(kind="stop")
        return self._next_window(facts, after_proof=done.kind == "proof")

    def _after_warmup(self, done: Segment, facts: Facts) -> Segment:
        if facts.reference_changed:
            self._warmup_medians.clear()  # this chunk's steps were another optimizer's, too
            self.steady = None
        else:
            self._warmup_medians.append(facts.step_s)
        self._warmup_steps += done.num_steps
        if self._recording.warmup or self._recording.explain or self._is_warm(facts):
            return Segment(kind="proof", num_steps=1)
        return Segment(kind="warmup", num_steps=_steps_in(WARMUP_CHUNK_S, facts.step_s))

    def _is_warm(self, facts: Facts) -> bool:
        """Return whether to begin to measure: step times repeat, or trying any longer costs too much of the budget."""
        if len(self._warmup_medians) >= 2:
            before, last = self._warmup_medians[-2:]
            self.steady = abs(last - before) <= STEADY_WITHIN * before
        if self.steady and self._warmup_steps >= LEAST_WARMUP_STEPS:
            return True
        return facts.elapsed_s > MOST_WARMUP_SHARE * self._recording.time_budget_s

    def _next_window(self, facts: Facts, *, after_proof: bool) -> Segment:
        num_steps = self._recording.steps or _steps_in(LEAST_WINDOW_S, self._step_s)
        if not self._arms_left and self._round < self._recording.rounds and self._affordable(num_steps, facts):
            self._round += 1
            self._arms_left = list(self._arms)
            self._random.shuffle(self._arms_left)
        if self._arms_left:
            return Segment(
                kind="measure",
                arm=self._arms_left.pop(),
                round=self._round,
                skip=self._skip(facts, after_proof=after_proof),
                num_steps=num_steps,
            )
        if self._recording.trace_steps:
            return Segment(kind="trace", skip=1, num_steps=self._trace_steps())
        return Segment(kind="stop")

    def _affordable(self, num_steps: int, facts: Facts) -> bool:
        """Return whether another round fits the budget; the first three always do."""
        trace_s = TRACED_STEP_COST * (self._trace_steps() + 1) * self._step_s
        round_s = len(self._arms) * (num_steps + 1) * self._step_s
        return self._round < LEAST_ROUNDS or facts.elapsed_s + round_s + trace_s <= self._recording.time_budget_s

    def _trace_steps(self) -> int:
        """Return the steps to trace: as many as asked for, fewer where steps are slow."""
        share_s = MOST_TRACE_SHARE * self._recording.time_budget_s
        affordable = int(share_s / max(TRACED_STEP_COST * self._step_s, 1e-6))
        return min(self._recording.trace_steps, max(LEAST_TRACE_STEPS, affordable))

    def _skip(self, facts: Facts, *, after_proof: bool) -> int:
        """Return the uncounted steps: one, and while the proof was evaluated the loader's queue filled up."""
        return min(MOST_SKIPPED, 1 + 2 * facts.prefetch) if after_proof else 1


def _steps_in(seconds: float, step_s: float) -> int:
    """Return the steps that fill so much time, LEAST_STEPS at least."""
    return max(LEAST_STEPS, math.ceil(seconds / max(step_s, 1e-6)))
