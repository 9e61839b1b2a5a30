"""Turns the ends of steps into records."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import NamedTuple

from dpdoctor.heartbeat import Heartbeat
from dpdoctor.records import StepRecord
from dpdoctor.worker.timing.exchanges import Exchanges
from dpdoctor.worker.timing.phases import Notes, PhaseClock
from dpdoctor.worker.timing.recorder import Recorder
from dpdoctor.worker.timing.tally import Counted, Tally


class HookCost(NamedTuple):
    """Host ns of one hook: in a step that is counted the short way, and in any other."""

    short_ns: float
    long_ns: float


class StepLog:
    """Records each step, and what recording it cost at `hook` for each phase entered.

    `exchanges`, where there are several ranks, counts what they exchange.
    `first_ns` is when the first step began, `since_ns` when it ended, `last_ns` when the last one did.
    """

    def __init__(  # noqa: PLR0917 - the parts of one rank, built in one place
        self,
        clock: Callable[[], int],
        phases: PhaseClock,
        tally: Tally,
        recorder: Recorder,
        heartbeat: Heartbeat,
        hook: HookCost,
    ) -> None:
        self._clock = clock
        self._phases = phases
        self._tally = tally
        self._recorder = recorder
        self._heartbeat = heartbeat
        self._hook = hook
        self._durations: list[int] = []
        self._samples = 0
        self._costs: list[float] = []
        self.exchanges: Exchanges | None = None
        self.num_steps = 0
        self.first_ns: int | None = None
        self.since_ns = self.last_ns = 0

    def interrupted(self) -> None:
        """What the script did since the step before is not what a step does: this one is no steady one."""
        self._tally.interrupted()

    def step(self, window: int, *, counted: bool) -> None:
        """Note the step that ends now; its record is made when the recorder writes it."""
        notes, consumed = self._phases.lap(), self._tally.lap()
        self.last_ns = end_ns = notes.end_ns
        if self.first_ns is None:
            self.first_ns, self.since_ns = notes.begin_ns, end_ns
        collectives = called = None
        if self.exchanges:
            collectives = self.exchanges.lap()
            called = self.exchanges.last.called
            self.exchanges.counted(collectives, in_window=counted)
        self.num_steps += 1
        self._samples += consumed.samples_drawn or consumed.samples_entered
        self._recorder.step(_record, self.num_steps, window, counted, notes, consumed, collectives, called)
        self._heartbeat.beat(self.num_steps, self._samples, end_ns)
        if counted:
            self._durations.append(end_ns - notes.begin_ns)
            hook_ns = self._hook.short_ns if self._tally.was_short else self._hook.long_ns
            # A phase is entered and left, each a number and a time.
            self._costs.append(len(notes.log) // 4 * hook_ns + self._clock() - end_ns)

    def restart(self) -> None:
        """Begin the next step now: what happened since the last one belongs to no step."""
        self._phases.lap()
        if self.exchanges:
            self.exchanges.lap()

    def median_ns(self) -> int:
        """Return the median of the counted steps since this was last asked; 0 without any."""
        durations, self._durations = self._durations, []
        return int(statistics.median(durations)) if durations else 0

    @property
    def cost_ns(self) -> float | None:
        """Return the median host time per counted step that dpdoctor's own hooks took; None before the first."""
        return statistics.median(self._costs) if self._costs else None


def _record(  # noqa: PLR0917 - by place it takes less of a step
    step: int, window: int, counted: bool, notes: Notes, consumed: Counted, collectives: int | None, called: int | None
) -> StepRecord:
    return StepRecord(
        step=step,
        window=window,
        begin_ns=notes.begin_ns,
        duration_ns=notes.duration_ns,
        phases_ns=notes.phases_ns(),
        samples_drawn=consumed.samples_drawn,
        samples_entered=consumed.samples_entered,
        micro_batches=consumed.micro_batches,
        epoch_edge=consumed.epoch_edge,
        counted=counted,
        elements=consumed.elements,
        samples_handed=consumed.samples_handed,
        reconciled=consumed.reconciled,
        collectives=collectives,
        called=called,
    )
