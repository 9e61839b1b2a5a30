from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dpdoctor import heartbeat, rundir
from dpdoctor.heartbeat import Heartbeat
from dpdoctor.records import StepRecord
from dpdoctor.worker.timing.phases import FORWARD, PhaseClock
from dpdoctor.worker.timing.recorder import Recorder
from dpdoctor.worker.timing.steplog import HookCost, StepLog
from dpdoctor.worker.timing.tally import Tally
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
def log(tmp_path: Path, clock: HandClock) -> Iterator[Log]:
    found = Log(tmp_path, clock)
    yield found
    found.recorder.close()


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
