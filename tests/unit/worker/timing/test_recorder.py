from __future__ import annotations

from pathlib import Path

import pytest

from dpdoctor import heartbeat, rundir
from dpdoctor.heartbeat import Heartbeat
from dpdoctor.records import EventRecord, StepRecord, WindowRecord
from dpdoctor.worker.timing.phases import FORWARD, PhaseClock
from dpdoctor.worker.timing.recorder import HookCost, Recorder, StepLog
from dpdoctor.worker.timing.tally import Tally
from tests.builders import records
from tests.builders.handclock import HandClock


class Log:
    """A step log and the parts it reads."""

    def __init__(self, directory: Path, clock: HandClock) -> None:
        self.directory, self.clock = directory, clock
        self.phases, self.tally = PhaseClock(clock), Tally()
        self.recorder = Recorder(directory, clock)
        beats = Heartbeat(directory, 1, clock)
        self.steps = StepLog(clock, self.phases, self.tally, self.recorder, beats, hook=HookCost(5, 9))

    def step(self, ns: int, *, samples: int = 4, counted: bool = True) -> None:
        self.tally.fetched(0, samples)
        self.tally.trained(samples)
        self.tally.backward()
        depth = self.phases.push(FORWARD)
        self.clock.tick(ns)
        self.phases.pop(depth)
        self.steps.step(1, counted=counted)

    def written(self) -> tuple[StepRecord, ...]:
        self.recorder.flush()
        return rundir.read_lines(self.directory / rundir.STEPS, StepRecord)


@pytest.fixture
def log(tmp_path: Path, clock: HandClock) -> Log:
    return Log(tmp_path, clock)


def test_steps_follow_each_other_without_a_gap(log: Log) -> None:
    for ns in (10, 20, 30):
        log.step(ns)
    steps = log.written()
    assert [(s.step, s.begin_ns, s.duration_ns, s.phases_ns[FORWARD]) for s in steps] == [
        (1, 0, 10, 10),
        (2, 10, 20, 20),
        (3, 30, 30, 30),
    ]
    assert (log.steps.first_ns, log.steps.last_ns, log.steps.num_steps) == (0, 60, 3)


def test_the_share_of_a_phase_is_of_the_last_segment_that_had_several_steps(log: Log) -> None:
    assert log.steps.host_share(FORWARD) is None
    for other in (0, 0, 30):  # beside 10 of the forward pass; the first step does not count
        log.step(10)
        log.clock.tick(other)
    log.step(10)
    log.recorder.flush()
    assert log.steps.host_share(FORWARD) == 1.0
    log.clock.tick(90)
    log.step(10)
    log.recorder.flush()  # one step, as of a proof
    assert log.steps.host_share(FORWARD) == 1.0
    log.step(10)
    log.clock.tick(30)
    log.step(10)
    log.recorder.flush()
    assert log.steps.host_share(FORWARD) == 0.25


def test_what_happens_before_a_restart_belongs_to_no_step(log: Log) -> None:
    log.step(10)
    log.clock.tick(1000)
    log.steps.restart()
    assert log.steps.last_ns == 10
    log.step(20)
    first, second = log.written()
    assert (second.begin_ns, second.duration_ns) == (1010, 20)
    assert first.begin_ns + first.duration_ns == 10


def test_the_median_is_of_the_counted_steps_since_it_was_last_asked_for(log: Log) -> None:
    assert log.steps.median_ns() == 0
    log.step(1000, counted=False)
    for ns in (10, 20, 90):
        log.step(ns)
    assert log.steps.median_ns() == 20
    log.step(50)
    assert log.steps.median_ns() == 50


def test_the_heartbeat_shows_steps_and_samples(log: Log, tmp_path: Path) -> None:
    log.step(10, samples=4)
    log.step(10, samples=3)
    beat = heartbeat.read(tmp_path)
    assert beat is not None
    assert (beat.step, beat.samples) == (2, 7)


@pytest.mark.parametrize(("was_short", "hook_ns"), [(True, 5), (False, 9)])
def test_what_watching_costs_is_the_hooks_of_a_step(log: Log, was_short: bool, hook_ns: int) -> None:
    log.tally.was_short = was_short
    assert log.steps.cost_ns is None
    log.step(10, counted=False)
    assert log.steps.cost_ns is None
    depth = log.phases.push(FORWARD)
    log.phases.pop(depth)
    log.step(10)
    assert log.steps.cost_ns == 2 * hook_ns


@pytest.fixture
def recorder(tmp_path: Path, clock: HandClock) -> Recorder:
    return Recorder(tmp_path, clock)


def test_nothing_is_written_before_the_edge(recorder: Recorder, tmp_path: Path) -> None:
    recorder.step(records.step)
    assert list(tmp_path.iterdir()) == []


def test_flush_appends_each_record_once(recorder: Recorder, tmp_path: Path) -> None:
    steps = [records.step(step=number) for number in range(1, 5)]
    recorder.step(lambda: steps[0])
    recorder.window(records.window(100, window=0))
    recorder.flush()
    for step in steps[1:]:
        recorder.step(steps.__getitem__, step.step - 1)
    recorder.event("note", detail="hello")
    recorder.flush()
    recorder.flush()
    assert rundir.read_lines(tmp_path / rundir.STEPS, StepRecord) == tuple(steps)
    assert rundir.read_lines(tmp_path / rundir.WINDOWS, WindowRecord) == (records.window(100, window=0),)
    (event,) = rundir.read_lines(tmp_path / rundir.EVENTS, EventRecord)
    assert (event.kind, event.detail, event.step) == ("note", "hello", 4)


def test_an_event_is_dated_by_its_begin(recorder: Recorder, tmp_path: Path, clock: HandClock) -> None:
    clock.tick(100)
    recorder.event("note", duration_ns=30)
    recorder.flush()
    (event,) = rundir.read_lines(tmp_path / rundir.EVENTS, EventRecord)
    assert (event.at_ns, event.duration_ns) == (70, 30)


def test_what_cannot_be_written_is_not_written_later_a_second_time(tmp_path: Path, clock: HandClock) -> None:
    directory = tmp_path / "gone"
    recorder = Recorder(directory, clock)
    recorder.step(records.step)
    with pytest.raises(rundir.OutputError):
        recorder.flush()
    directory.mkdir()
    recorder.flush()
    assert not (directory / rundir.STEPS).exists()
