from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpdoctor import rundir
from dpdoctor.records import EventRecord, StepRecord, WindowRecord
from dpdoctor.worker.timing.recorder import LEAST_GC_NS, Recorder
from tests.builders import records
from tests.builders.handclock import HandClock


@pytest.fixture
def recorder(tmp_path: Path, clock: HandClock) -> Iterator[Recorder]:
    """Give a recorder that hears nothing of the real garbage collector's pauses: the clock stands still."""
    found = Recorder(tmp_path, clock)
    yield found
    found.close()


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


class Slow:
    """Takes its time when it is collected: a cycle, so that only the garbage collector frees it."""

    def __init__(self, clock: HandClock, pause_ns: int) -> None:
        self.clock, self.pause_ns, self.itself = clock, pause_ns, self

    def __del__(self) -> None:
        self.clock.tick(self.pause_ns)


@pytest.mark.parametrize(("pause_ns", "recorded"), [(LEAST_GC_NS - 1, []), (LEAST_GC_NS, [LEAST_GC_NS])])
def test_long_pauses_of_the_garbage_collector_are_events(
    recorder: Recorder, tmp_path: Path, clock: HandClock, pause_ns: int, recorded: list[int]
) -> None:
    gc.collect()
    Slow(clock, pause_ns)
    gc.collect()
    recorder.flush()
    events = rundir.read_lines(tmp_path / rundir.EVENTS, EventRecord)
    assert [event.duration_ns for event in events] == recorded
    assert all((event.kind, event.detail) == ("gc", "generation 2") for event in events)


def test_closed_it_hears_no_more_pauses(recorder: Recorder, tmp_path: Path, clock: HandClock) -> None:
    recorder.close()
    recorder.close()
    Slow(clock, 10 * LEAST_GC_NS)
    gc.collect()
    recorder.flush()
    assert not (tmp_path / rundir.EVENTS).exists()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_does_not_listen(recorder: Recorder) -> None:
    assert recorder._on_gc in gc.callbacks
    pid = os.fork()
    if pid == 0:
        os._exit(recorder._on_gc in gc.callbacks)
    assert os.waitpid(pid, 0)[1] == 0


def test_what_cannot_be_written_is_not_written_later_a_second_time(tmp_path: Path, clock: HandClock) -> None:
    directory = tmp_path / "gone"
    recorder = Recorder(directory, clock)
    recorder.step(records.step)
    with pytest.raises(rundir.OutputError):
        recorder.flush()
    directory.mkdir()
    recorder.flush()
    recorder.close()
    assert not (directory / rundir.STEPS).exists()
