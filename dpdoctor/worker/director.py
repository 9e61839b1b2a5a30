"""Rank 0's decisions: what the next steps are for. Pure: facts in, a segment out."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from dpdoctor.records import FULL
from dpdoctor.spec import Recording

KINDS = ("warmup", "proof", "measure", "trace", "stop")

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
# So many batches are kept to be replayed where steps are slow; else keeping may take this share of the budget.
LEAST_KEPT = 2
MOST_KEEPING_SHARE = 0.03
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
    """What the ranks found in the segment that ends: the slowest rank's median step, the deepest loader queue.

    `num_workers`: of the loader that has most. `unfit`: arms that some rank cannot run, or not any more.
    """

    step_s: float
    prefetch: int
    elapsed_s: float
    reference_changed: bool = False
    num_workers: int = 0
    unfit: tuple[str, ...] = ()


class Director:
    """Plans warm-up, proof, rounds of windows, trace and stop. Lives on rank 0 only.

    `arms` begin with FULL, and the most important come first; `dropped` are those that there is no time for.
    `num_kept`: uncounted steps before the first window in which batches are kept for arms that replay them.
    `tries_loaders`: whether loaders are tried before the end.
    """

    def __init__(self, recording: Recording, arms: tuple[str, ...], seed: int, *, num_kept: int = 0) -> None:
        self._recording = recording
        self._arms = arms
        self._num_kept = num_kept
        self._random = random.Random(seed)
        self._arm_step_s: dict[str, float] = {}
        self._warmup_medians: list[float] = []
        self._warmup_steps = 0
        self._arms_left: list[str] = []
        self._round = 0
        self._step_s = 0.0
        self.tries_loaders = recording.loader_trials
        self.steady: bool | None = None
        self.dropped: tuple[str, ...] = ()

    def first(self) -> Segment:
        """Return the first warm-up chunk."""
        return Segment(
            kind="warmup", num_steps=self._recording.warmup or (1 if self._recording.explain else LEAST_STEPS)
        )

    def after(self, done: Segment, facts: Facts) -> Segment:
        """Return the segment that follows `done`."""
        if done.kind != "proof":  # its only step ran under a profiler
            self._arm_step_s[done.arm] = facts.step_s
            self._step_s = self._arm_step_s[FULL]
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
        self._arms_left = [arm for arm in self._arms_left if arm not in facts.unfit]
        if not self._arms_left and self._round < self._recording.rounds and self._affordable(facts):
            self._begin_round(facts)
        if self._arms_left:
            arm = self._arms_left.pop()
            return Segment(
                kind="measure",
                arm=arm,
                round=self._round,
                skip=self._skip(facts, after_proof=after_proof),
                num_steps=self._num_steps(arm, facts),
            )
        if self._recording.trace_steps:
            return Segment(kind="trace", skip=1, num_steps=self._trace_steps())
        return Segment(kind="stop")

    def _begin_round(self, facts: Facts) -> None:
        """Shuffle the windows of a round; the first begins with a full one, before which batches are kept."""
        self._drop_what_takes_too_long(facts)
        self._round += 1
        self._arms_left = self._fit(facts)
        self._random.shuffle(self._arms_left)
        if self._round == 1:
            self._arms_left.remove(FULL)
            self._arms_left.append(FULL)

    def _fit(self, facts: Facts) -> list[str]:
        return [arm for arm in self._arms if arm not in facts.unfit and arm not in self.dropped]

    def _drop_what_takes_too_long(self, facts: Facts) -> None:
        """Keep, by importance, the arms of which three windows fit beside those of the full step and the trace.

        Once it has begun, only an arm that turned out slower than the full step is dropped.
        """
        left_s = self._recording.time_budget_s - facts.elapsed_s - self._trace_s()
        rounds = max(0, min(LEAST_ROUNDS, self._recording.rounds) - self._round)
        for arm in self._fit(facts):
            cost_s = rounds * self._window_s(arm, facts)
            may_stay = arm == FULL or (self._round > 0 and self._step_s_of(arm) <= self._step_s)
            if may_stay or cost_s <= left_s:
                left_s -= cost_s
            else:
                self.dropped += (arm,)

    def _affordable(self, facts: Facts) -> bool:
        """Return whether another round fits the budget; the first three always do."""
        round_s = sum(self._window_s(arm, facts) for arm in self._fit(facts))
        left_s = self._recording.time_budget_s - facts.elapsed_s - self._trace_s()
        return self._round < LEAST_ROUNDS or round_s <= left_s

    def _window_s(self, arm: str, facts: Facts) -> float:
        return (self._num_steps(arm, facts) + 1) * self._step_s_of(arm)

    def _trace_s(self) -> float:
        return TRACED_STEP_COST * (self._trace_steps() + 1) * self._step_s

    def _step_s_of(self, arm: str) -> float:
        """Return the time of an arm's step; before its first window, that of a full one."""
        return self._arm_step_s.get(arm, self._step_s)

    def _num_steps(self, arm: str, facts: Facts) -> int:
        """Return the steps of a window. Workers deliver in turns, so it holds whole turns where it holds any."""
        if self._recording.steps:
            return self._recording.steps
        num_steps = _steps_in(LEAST_WINDOW_S, self._step_s_of(arm))
        turn = facts.num_workers if 1 < facts.num_workers <= num_steps else 1
        return math.ceil(num_steps / turn) * turn

    def _trace_steps(self) -> int:
        """Return the steps to trace: as many as asked for, fewer where steps are slow."""
        share_s = MOST_TRACE_SHARE * self._recording.time_budget_s
        affordable = int(share_s / max(TRACED_STEP_COST * self._step_s, 1e-6))
        return min(self._recording.trace_steps, max(LEAST_TRACE_STEPS, affordable))

    def _skip(self, facts: Facts, *, after_proof: bool) -> int:
        """Return the uncounted steps: one, and while the proof was evaluated the loader's queue filled up."""
        return min(MOST_SKIPPED, 1 + max(2 * facts.prefetch, self._steps_to_keep(facts))) if after_proof else 1

    def _steps_to_keep(self, facts: Facts) -> int:
        """Return the steps in which batches are kept: as many as there is place for, fewer where steps are slow."""
        if not self._num_kept or len(self._fit(facts)) == 1:
            return 0
        share_s = MOST_KEEPING_SHARE * self._recording.time_budget_s
        return max(LEAST_KEPT, min(self._num_kept, int(share_s / max(self._step_s, 1e-6))))


def _steps_in(seconds: float, step_s: float) -> int:
    """Return the steps that fill so much time, LEAST_STEPS at least."""
    return max(LEAST_STEPS, math.ceil(seconds / max(step_s, 1e-6)))
