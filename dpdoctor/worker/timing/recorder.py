"""What a rank saw becomes records, written as it goes: a killed rank leaves everything up to its last window edge."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace

from dpdoctor import rundir
from dpdoctor.heartbeat import Heartbeat
from dpdoctor.loading import BatchRecord
from dpdoctor.records import EventRecord, MemoryRecord, StepRecord, WindowRecord
from dpdoctor.worker.timing.exchanges import Exchanges
from dpdoctor.worker.timing.phases import Notes, PhaseClock
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
        self.since_ns = self.last_ns = self._usual_ns = 0

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

    def passed(self, window: int, begin_ns: int, end_ns: int, *, counted: bool, is_edge: bool) -> None:
        """Note a step of which nothing was seen but its end, and whether a loader began in it."""
        notes = Notes(begin_ns, end_ns, [], self._phases.num_phases)
        self.num_steps += 1
        self.last_ns = end_ns
        self._recorder.step(_unwatched, self.num_steps, window, counted, notes, is_edge)
        self._heartbeat.beat(self.num_steps, self._samples, end_ns)
        if counted:
            self._durations.append(end_ns - begin_ns)

    def restart(self) -> None:
        """Begin the next step now: what happened since the last one belongs to no step."""
        self._phases.lap()
        if self.exchanges:
            self.exchanges.lap()

    def median_ns(self) -> int:
        """Return the median of the counted steps since this was last asked; 0 without any."""
        durations, self._durations = self._durations, []
        median_ns = int(statistics.median(durations)) if durations else 0
        if len(durations) > 1:
            self._usual_ns = median_ns
        return median_ns

    @property
    def cost_ns(self) -> float | None:
        """Return the median host time per counted step that dpdoctor's own hooks took; None before the first."""
        return statistics.median(self._costs) if self._costs else None

    def host_share(self, phase: int) -> float | None:
        """Return what a phase takes of the median step of the last segment that had several; None: of a GPU's steps,
        behind which the host runs ahead, and before there were any.
        """
        steps = self._recorder.last_steps
        if torch.cuda.is_available() or not steps:
            return None
        return statistics.median(step.phases_ns[phase] / max(1, step.duration_ns) for step in steps)

    @property
    def own_share(self) -> float | None:
        """Return that over the median step of the last segment that had several; None before it ended."""
        cost_ns = self.cost_ns
        return None if cost_ns is None or not self._usual_ns else cost_ns / self._usual_ns


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
        interrupted=consumed.interrupted,
    )


def _unwatched(step: int, window: int, counted: bool, notes: Notes, is_edge: bool) -> StepRecord:
    nothing = Counted(samples_drawn=0, samples_entered=0, micro_batches=0, epoch_edge=is_edge)
    return replace(_record(step, window, counted, notes, nothing, None, None), watched=False)


class Recorder:
    """Keeps steps, events and batches in memory within a window and appends them to their files at its edge.

    Attributes:
        num_steps: that were kept.
        last_steps: all but the first of the last window that had several.
    """

    def __init__(self, directory: Path, clock: Callable[[], int]) -> None:
        self._directory = directory
        self._clock = clock
        # As what makes them and what of: within a step there is no time for more.
        self._steps: list[tuple[Callable[..., StepRecord], tuple[Any, ...]]] = []
        self._windows: list[WindowRecord] = []
        self._events: list[EventRecord] = []
        self._batches: list[tuple[Callable[..., BatchRecord], tuple[Any, ...]]] = []
        self._memory: list[MemoryRecord] = []
        self.num_steps = 0
        self.last_steps: list[StepRecord] = []

    def step(self, make: Callable[..., StepRecord], *values: Any) -> None:
        """Keep one step, whose record is made of these values when it is written."""
        self._steps.append((make, values))
        self.num_steps += 1

    def window(self, record: WindowRecord) -> None:
        """Keep one window."""
        self._windows.append(record)

    def event(self, kind: str, *, at_ns: int | None = None, duration_ns: int = 0, detail: str = "") -> None:
        """Keep an event that began at `at_ns`; None: that ends now."""
        at_ns = self._clock() - duration_ns if at_ns is None else at_ns
        self._events.append(
            EventRecord(kind=kind, at_ns=at_ns, duration_ns=duration_ns, step=self.num_steps, detail=detail)
        )

    def ran(self, kind: str, begin_ns: int, end_ns: int) -> None:
        """Keep a pass of forwards without gradients."""
        self.event(kind, at_ns=begin_ns, duration_ns=end_ns - begin_ns)

    def batch(self, make: Callable[..., BatchRecord], *values: Any) -> None:
        """Keep one batch of a loader, made like a step."""
        self._batches.append((make, values))

    def memory(self, record: MemoryRecord) -> None:
        """Keep what the memory holds."""
        self._memory.append(record)

    def flush(self) -> None:
        """Append what is kept to the files."""
        steps, windows, events, batches = self._steps, self._windows, self._events, self._batches
        memory, self._memory = self._memory, []
        # First, not last: a signal handler that flushes while this writes must not write the same lines again.
        self._steps, self._windows, self._events, self._batches = [], [], [], []
        records = [make(*values) for make, values in steps]
        self.last_steps = records[1:] or self.last_steps
        rundir.append_lines(self._directory / rundir.STEPS, records)
        rundir.append_lines(self._directory / rundir.WINDOWS, windows)
        rundir.append_lines(self._directory / rundir.EVENTS, events)
        rundir.append_lines(self._directory / rundir.LOADER, [make(*values) for make, values in batches])
        rundir.append_lines(self._directory / rundir.MEMORY, memory)
