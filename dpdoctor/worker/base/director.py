"""Rank 0's decisions: what the next steps are for. Pure: facts in, a segment out."""

from __future__ import annotations

import math
import random

import msgspec

from dpdoctor import units
from dpdoctor.records import FULL
from dpdoctor.spec import Recording

# `over`: the time is, and no window was measured.
KINDS = ("warmup", "proof", "measure", "trace", "stop", "over")

# A window shorter than this says more about the clock and its edges than about the script.
LEAST_STEPS = 4
LEAST_WINDOW_S = 0.5
# What a script does between its steps is known only once it did it: a segment is at most so many times as long as all
# before it together, so that a pause in every tenth step does not come as a surprise a hundred times.
MOST_GROWTH = 2
# Warm-up ends when the last chunk's median step is within this share of the one before it.
STEADY_WITHIN = 0.05
LEAST_WARMUP_STEPS = 10
WARMUP_CHUNK_S = 0.2
# A script that never becomes steady may spend this share of its budget on trying.
MOST_WARMUP_SHARE = 0.25
# Fewer windows than this give no usable interval (Student's t is 12.7 at two). They may take the budget and a share of
# it more, the first one a larger share; where that is too little, their steps give way, then they do.
LEAST_ROUNDS = 3
MOST_OVERRUN = 0.25
MOST_OVERRUN_OF_FIRST = 0.4
# What a trace tells nothing else does: all windows but the first leave it room, and it may take more than they.
MOST_OVERRUN_OF_TRACE = 0.5
LEAST_STEPS_OF_SLOW = 2
# The trace may take this share of the budget, at this many untraced steps for a traced one; never fewer than two steps.
MOST_TRACE_SHARE = 0.15
TRACED_STEP_COST = 2.0
LEAST_TRACE_STEPS = 2
# So many batches are kept to be replayed where steps are slow; else keeping may take this share of the budget.
LEAST_KEPT = 2
MOST_KEEPING_SHARE = 0.03
MOST_SKIPPED = 64
MOST_SKIPPED_SHARE = 0.3

TOO_LITTLE = (
    "--time-budget of {} is too little for {}{}: {} measured{}. A step takes {}, with a share of what the script does "
    "in some steps only{}; give --time-budget {}"
)
IN_VAIN = ", and an experiment waited {} in vain"


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive steps between two edges: `skip` uncounted ones, then `num_steps` counted ones."""

    kind: str
    ablation: str = FULL
    round: int = 0
    skip: int = 0
    num_steps: int = 0


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks found in the segment that ends: the slowest rank's median step, the deepest loader queue.

    `elapsed_s`: since the first step, which sets up much. `lost_s`: what ablations waited in vain meanwhile.
    `num_workers`: of the loader that has most. `unfit`: ablations that some rank cannot run, or not any more. `period`:
    steps after which what ranks exchange repeats itself.
    """

    step_s: float
    prefetch: int
    elapsed_s: float
    lost_s: float = 0.0
    reference_changed: bool = False
    num_workers: int = 0
    period: int = 1
    unfit: tuple[str, ...] = ()


class Director:
    """Plans warm-up, proof, rounds of windows, trace and stop. Lives on rank 0 only.

    `ablations` begin with FULL, and the most important come first; `dropped` are those that there is no time for.
    `num_kept`: uncounted steps before the first window in which batches are kept for ablations that replay them.
    `tries_loaders`: whether loaders are tried before the end. `num_windows`: full ones that were measured.
    `given_way`: what the reader must know of windows or a trace that there was no time for.
    """

    def __init__(self, recording: Recording, ablations: tuple[str, ...], seed: int, *, num_kept: int = 0) -> None:
        self._recording = recording
        self._ablations = ablations
        self._num_kept = num_kept
        self._random = random.Random(seed)
        self._ablation_step_s: dict[str, float] = {}
        self._warmup_medians: list[float] = []
        self._warmup_steps = 0
        self._ablations_left: list[str] = []
        self._round = 0
        self._step_s = 0.0
        self._elapsed_s = self._lost_s = self._between_s = self._most_extra_s = 0.0
        self._steps = self._paced_steps = 0
        self._kind_before = ""
        self.num_windows = 0
        self._is_growing = False
        self._ready_s = 0.0
        self.given_way: str | None = None
        self.tries_loaders = recording.loader_trials
        self.steady: bool | None = None
        self.dropped: tuple[str, ...] = ()

    def first(self) -> Segment:
        """Return the first warm-up chunk; the first step, which sets up much, tells nothing of the others."""
        if self._recording.warmup or self._recording.explain:
            return Segment(kind="warmup", num_steps=self._recording.warmup or 1)
        return Segment(kind="warmup", skip=1, num_steps=1)

    def after(self, done: Segment, facts: Facts) -> Segment:
        """Return the segment that follows `done`."""
        self._note_pace(done, facts)
        if done.kind != "proof":  # its only step ran under a profiler
            self._ablation_step_s[done.ablation] = facts.step_s
            self._step_s = self._ablation_step_s[FULL]
        if done.kind == "proof":
            self._ready_s = facts.elapsed_s
        if done.kind == "warmup":
            return self._after_warmup(done, facts)
        if self._recording.explain or done.kind == "trace":
            return Segment(kind="stop")
        if self._recording.trace_only:
            return Segment(kind="trace", skip=1, num_steps=self._recording.trace_steps)
        return self._next_window(facts, after_proof=done.kind == "proof")

    def _note_pace(self, done: Segment, facts: Facts) -> None:
        """Learn what steps cost beyond their usual time: what the script does in some of them only.

        The segment after the proof began with its evaluation, which comes once.
        """
        steps, took_s = done.skip + done.num_steps, facts.elapsed_s - self._elapsed_s - (facts.lost_s - self._lost_s)
        is_plain = done.kind != "proof" and (self._kind_before != "proof" or not self._paced_steps)
        if self._steps and is_plain:
            extra_s = max(0.0, took_s - steps * facts.step_s)
            self._between_s += extra_s
            self._most_extra_s = max(self._most_extra_s, extra_s)
            self._paced_steps += steps
        self._steps += steps
        self.num_windows += done.kind == "measure" and done.ablation == FULL
        self._elapsed_s, self._lost_s, self._kind_before = facts.elapsed_s, facts.lost_s, done.kind

    def _pace_s(self, ablation: str = FULL) -> float:
        """Return the seconds from one step to the next, with what only some steps do spread over all of them."""
        return self._step_s_of(ablation) + self._between_s / max(1, self._paced_steps)

    def _after_warmup(self, done: Segment, facts: Facts) -> Segment:
        usual = _steps_in(WARMUP_CHUNK_S, facts.step_s)
        if facts.reference_changed:
            self._warmup_medians.clear()  # this chunk's steps were another optimizer's, too
            self.steady = None
        elif done.num_steps >= LEAST_STEPS and not self._is_growing:
            self._warmup_medians.append(facts.step_s)
        self._warmup_steps += done.num_steps
        if self._recording.warmup or self._recording.explain or self._is_warm(facts):
            return Segment(kind="proof", num_steps=1) if self._is_time_to_measure(facts) else Segment(kind="over")
        left_s = MOST_WARMUP_SHARE * self._recording.time_budget_s - facts.elapsed_s
        fitting = max(1, min(usual, int(left_s / max(self._pace_s(), 1e-6))))
        self._is_growing = fitting > MOST_GROWTH * self._steps
        return Segment(kind="warmup", num_steps=min(fitting, MOST_GROWTH * self._steps))

    def _is_warm(self, facts: Facts) -> bool:
        """Return whether to begin to measure: step times repeat, or trying any longer costs too much of the budget."""
        if len(self._warmup_medians) >= 2:
            before, last = self._warmup_medians[-2:]
            self.steady = abs(last - before) <= STEADY_WITHIN * before
        if self.steady and self._warmup_steps >= LEAST_WARMUP_STEPS:
            return True
        return facts.elapsed_s + self._pace_s() > MOST_WARMUP_SHARE * self._recording.time_budget_s

    def _is_time_to_measure(self, facts: Facts) -> bool:
        """Return whether the proof, and a step of a window after it, may fit."""
        recording = self._recording
        is_asked_for = recording.explain or recording.warmup is not None or recording.steps is not None
        return is_asked_for or 2 * self._pace_s() <= self._most_left_s(facts)

    def _next_window(self, facts: Facts, *, after_proof: bool) -> Segment:
        self._ablations_left = [ablation for ablation in self._ablations_left if self._may_follow(ablation, facts)]
        if not self._ablations_left and self._round < self._recording.rounds and self._affordable(facts):
            self._begin_round(facts)
        if self._ablations_left:
            ablation = self._ablations_left.pop()
            skip = self._skip(ablation, facts, after_proof=after_proof)
            num_steps = self._fitting_steps(facts, skip) if ablation == FULL else self._num_steps(ablation, facts)
            return Segment(kind="measure", ablation=ablation, round=self._round, skip=skip, num_steps=num_steps)
        return self._after_windows(facts)

    def _after_windows(self, facts: Facts) -> Segment:
        if not self.num_windows:
            return Segment(kind="over")
        num_steps = self._trace_steps(facts)
        wanted = min(LEAST_ROUNDS, self._recording.rounds)
        has_trace = num_steps > 0 or not self._recording.trace_steps
        if self.num_windows < wanted or not has_trace:
            self.given_way = TOO_LITTLE.format(
                units.seconds(self._recording.time_budget_s),
                units.count(wanted, "window"),
                "" if has_trace else " and a trace",
                units.count(self.num_windows, "window"),
                "" if has_trace else ", nothing traced",
                units.seconds(self._pace_s()),
                IN_VAIN.format(units.seconds(facts.lost_s)) if facts.lost_s else "",
                self._enough_s(wanted, facts),
            )
        return Segment(kind="trace", skip=1, num_steps=num_steps) if num_steps else Segment(kind="stop")

    def _enough_s(self, wanted: int, facts: Facts) -> int:
        """Return the budget that would have been enough: as the steps usually go, and as they went this time."""
        usually_s = self._ready_s + wanted * self._window_s(FULL, facts)
        missing = max(0, wanted - self.num_windows)
        this_time_s = facts.elapsed_s + missing * self._window_s(FULL, facts) + self._most_extra_s
        return math.ceil(max(usually_s, this_time_s) + self._trace_s())

    def _may_follow(self, ablation: str, facts: Facts) -> bool:
        """Return whether an ablation of a round under way can still run, and ends in time."""
        if ablation == FULL:
            return self._fitting_steps(facts) > 0
        return ablation not in facts.unfit and self._window_s(ablation, facts) <= self._most_left_s(facts)

    def _begin_round(self, facts: Facts) -> None:
        """Shuffle the windows of a round; the first begins with a full one, before which batches are kept."""
        self._drop_what_takes_too_long(facts)
        self._round += 1
        self._ablations_left = self._fit(facts)
        self._random.shuffle(self._ablations_left)
        if self._round == 1:
            self._ablations_left.remove(FULL)
            self._ablations_left.append(FULL)

    def _fit(self, facts: Facts) -> list[str]:
        return [
            ablation for ablation in self._ablations if ablation not in facts.unfit and ablation not in self.dropped
        ]

    def _drop_what_takes_too_long(self, facts: Facts) -> None:
        """Keep, by importance, the ablations of which three windows fit beside those of the full step and the trace.

        Once it has begun, only an ablation that turned out slower than the full step is dropped.
        """
        left_s = self._recording.time_budget_s - facts.elapsed_s - self._trace_s()
        rounds = self._windows_needed()
        for ablation in self._fit(facts):
            cost_s = rounds * self._window_s(ablation, facts)
            may_stay = ablation == FULL or (self._round > 0 and self._step_s_of(ablation) <= self._step_s)
            if may_stay or cost_s <= left_s:
                left_s -= cost_s
            else:
                self.dropped += (ablation,)

    def _windows_needed(self) -> int:
        """Return the full windows that are still missing to an interval."""
        return max(0, min(LEAST_ROUNDS, self._recording.rounds) - self.num_windows)

    def _affordable(self, facts: Facts) -> bool:
        """Return whether another round fits the budget; the first three may take a little more, with fewer steps."""
        round_s = sum(self._window_s(ablation, facts) for ablation in self._fit(facts))
        if round_s <= self._recording.time_budget_s - facts.elapsed_s - self._trace_s():
            return True
        # How many steps to take is the word of the user where --steps gives it: one window is, whatever it takes.
        is_asked_for = self._recording.steps is not None and not self.num_windows
        return is_asked_for or (self._windows_needed() > 0 and self._fitting_steps(facts) > 0)

    def _most_left_s(self, facts: Facts) -> float:
        """Return what windows may still take; of that the first one leaves nothing to a trace, if need be."""
        overrun = MOST_OVERRUN if self.num_windows else MOST_OVERRUN_OF_FIRST
        left_s = (1 + overrun) * self._recording.time_budget_s - facts.elapsed_s
        if not self.num_windows:
            return left_s
        return min(left_s, self._left_to_trace_s(facts) - self._traced_s(self._least_traced()))

    def _left_to_trace_s(self, facts: Facts) -> float:
        """Return what the trace may take; an evaluation, say, may fall into it as into any segment."""
        most_s = (1 + MOST_OVERRUN_OF_TRACE) * self._recording.time_budget_s
        return most_s - facts.elapsed_s - self._most_extra_s

    def _least_traced(self) -> int:
        return min(self._recording.trace_steps, LEAST_TRACE_STEPS)

    def _window_s(self, ablation: str, facts: Facts) -> float:
        return (self._num_steps(ablation, facts) + 1) * self._pace_s(ablation)

    def _trace_s(self) -> float:
        """Return the seconds of the trace as it is meant to be, which is short: it must not cost a round."""
        return self._traced_s(min(self._recording.trace_steps, max(LEAST_TRACE_STEPS, self._affordable_trace_steps())))

    def _traced_s(self, num_steps: int) -> float:
        """Return the seconds of a trace, and of the step before it."""
        return (num_steps + 1) * (TRACED_STEP_COST * self._step_s + self._pace_s() - self._step_s) if num_steps else 0.0

    def _step_s_of(self, ablation: str) -> float:
        """Return the time of an ablation's step; before its first window, that of a full one."""
        return self._ablation_step_s.get(ablation, self._step_s)

    def _num_steps(self, ablation: str, facts: Facts) -> int:
        """Return the steps of a window. Workers deliver in turns, so it holds whole turns where it holds any.

        So do ranks that exchange something in some steps only.
        """
        if self._recording.steps:
            return self._recording.steps
        num_steps = _steps_in(LEAST_WINDOW_S, self._step_s_of(ablation))
        turn = facts.num_workers if 1 < facts.num_workers <= num_steps else 1
        turn = math.lcm(turn, facts.period)
        return math.ceil(num_steps / turn) * turn

    def _fitting_steps(self, facts: Facts, skip: int = 1) -> int:
        """Return the steps of a full window: fewer than usual, or none, where the time runs out.

        Fewer windows are better than many of a step each, in which the script may have done nothing but evaluate, or
        ranks exchanged nothing: only where no window was measured yet may one hold less than a turn of that.
        """
        usual = self._num_steps(FULL, facts)
        if self._recording.steps:
            return usual if self._window_s(FULL, facts) <= self._most_left_s(facts) or not self.num_windows else 0
        left = self._most_left_s(facts) / max(self._pace_s(), 1e-6)
        least = min(usual, max(LEAST_STEPS_OF_SLOW, facts.period))
        for rounds in range(max(1, self._windows_needed()), 0, -1):
            fitting = int(left / rounds) - skip
            if fitting >= least:
                return min(usual, fitting // facts.period * facts.period)
        return 0 if self.num_windows and facts.period > 1 else max(0, min(usual, int(left) - skip))

    def _trace_steps(self, facts: Facts) -> int:
        """Return the steps to trace: as many as asked for, fewer where steps are slow, none where time has run out."""
        num_steps = min(self._recording.trace_steps, max(LEAST_TRACE_STEPS, self._affordable_trace_steps()))
        left_s = self._left_to_trace_s(facts)
        while num_steps and self._traced_s(num_steps) > left_s:
            num_steps -= 1
        return num_steps

    def _affordable_trace_steps(self) -> int:
        share_s = MOST_TRACE_SHARE * self._recording.time_budget_s
        return int(share_s / max(TRACED_STEP_COST * self._step_s, 1e-6))

    def _skip(self, ablation: str, facts: Facts, *, after_proof: bool) -> int:
        """Return the uncounted steps: one, and while the proof was evaluated the loader's queue filled up.

        Where another setting of the loader is tried, its queue begins empty.
        """
        tried = self._recording.loader_setting
        if tried is not None and ablation != FULL:
            return min(MOST_SKIPPED, 1 + tried.num_workers * tried.prefetch_factor)
        if not after_proof:
            return 1
        wanted = 1 + max(2 * facts.prefetch, self._steps_to_keep(facts))
        fitting = int(MOST_SKIPPED_SHARE * self._most_left_s(facts) / max(self._pace_s(), 1e-6))
        return max(1, min(MOST_SKIPPED, wanted, fitting))

    def _steps_to_keep(self, facts: Facts) -> int:
        """Return the steps in which batches are kept: as many as there is place for, fewer where steps are slow."""
        if not self._num_kept or len(self._fit(facts)) == 1:
            return 0
        share_s = MOST_KEEPING_SHARE * self._recording.time_budget_s
        return max(LEAST_KEPT, min(self._num_kept, int(share_s / max(self._step_s, 1e-6))))


def _steps_in(seconds: float, step_s: float) -> int:
    """Return the steps that fill so much time, LEAST_STEPS at least."""
    return max(LEAST_STEPS, math.ceil(seconds / max(step_s, 1e-6)))
