from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dpdoctor import rundir
from dpdoctor.records import EventRecord
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.facts.checkpoints import Checkpoints
from dpdoctor.worker.facts.evaluations import Evaluations
from dpdoctor.worker.timing.phases import PhaseClock
from dpdoctor.worker.timing.recorder import Recorder
from tests.builders.handclock import HandClock

SAVE_NS = 5_000_000


class Slow:
    """Takes SAVE_NS to pickle."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock

    def __reduce__(self) -> Any:
        self.clock.tick(SAVE_NS)
        return int, ()


class Watched:
    """Saves that are watched; `passes` are the evaluations that ended."""

    def __init__(self, directory: Path, patches: Patches) -> None:
        self.clock = HandClock(1)
        self.phases = PhaseClock(self.clock)
        self.recorder = Recorder(directory, self.clock)
        self.passes: list[tuple[str, int, int]] = []
        self.evaluations = Evaluations(self.clock, lambda *ended: self.passes.append(ended))
        self._directory = directory
        Checkpoints(self.clock, self.phases, self.recorder, self.evaluations).watch(patches)

    def events(self) -> list[tuple[int, int, str]]:
        self.recorder.flush()
        path = self._directory / rundir.EVENTS
        events = rundir.read_lines(path, EventRecord) if path.exists() else ()
        return [(e.at_ns, e.duration_ns, e.detail) for e in events if e.kind == "checkpoint"]


@pytest.fixture
def watched(tmp_path: Path, patches: Patches) -> Iterator[Watched]:
    """Give watched saves; the recorder lets go of the garbage collector after the test."""
    made = Watched(tmp_path, patches)
    yield made
    made.recorder.close()


def test_a_save_is_timed_and_named_by_its_file(watched: Watched, tmp_path: Path) -> None:
    torch.save(Slow(watched.clock), tmp_path / "epoch-1.pt")
    torch.serialization.save(Slow(watched.clock), f=str(tmp_path / "hf_abcdefghijklmnopqrstuv.pt"))
    with (tmp_path / "open.pt").open("wb") as file:
        torch.save(Slow(watched.clock), file)
    assert watched.events() == [
        (1, SAVE_NS, "epoch-1.pt"),
        (1 + SAVE_NS, SAVE_NS, "<redacted>.pt"),
        (1 + 2 * SAVE_NS, SAVE_NS, "open.pt"),
    ]
    assert torch.load(tmp_path / "epoch-1.pt", weights_only=False) == 0


def test_what_stays_in_memory_is_no_checkpoint(watched: Watched) -> None:
    torch.save(Slow(watched.clock), io.BytesIO())
    assert watched.events() == []


def test_only_the_outermost_save_counts(watched: Watched, tmp_path: Path) -> None:
    class Nested:
        def __reduce__(self) -> Any:
            torch.save(Slow(watched.clock), tmp_path / "inner.pt")
            return int, ()

    torch.save(Nested(), tmp_path / "outer.pt")
    assert watched.events() == [(1, SAVE_NS, "outer.pt")]


def test_a_save_that_fails_took_its_time_and_the_next_one_counts(watched: Watched, tmp_path: Path) -> None:
    class Refuses:
        def __reduce__(self) -> Any:
            watched.clock.tick(7)
            raise ValueError("not this")

    with pytest.raises(ValueError, match="not this"):
        torch.save(Refuses(), tmp_path / "a.pt")
    torch.save(Slow(watched.clock), tmp_path / "b.pt")
    assert [(duration, name) for _, duration, name in watched.events()] == [(7, "a.pt"), (SAVE_NS, "b.pt")]


def test_a_thread_that_saves_beside_training_holds_nobody_up(watched: Watched, tmp_path: Path) -> None:
    watched.phases.belongs_here()
    thread = threading.Thread(target=torch.save, args=(Slow(watched.clock), tmp_path / "beside.pt"))
    thread.start()
    thread.join()
    assert watched.events() == []


def test_an_evaluation_ends_where_a_save_begins(watched: Watched, tmp_path: Path) -> None:
    with torch.no_grad():
        watched.evaluations.iterates()
        watched.evaluations.fetches()
        watched.evaluations.forward()
    watched.clock.tick(100)
    torch.save(Slow(watched.clock), tmp_path / "best.pt")
    watched.evaluations.trains()
    assert watched.passes == [("evaluation", 1, 101)]


def test_safetensors_are_checkpoints_too(tmp_path: Path, patches: Patches) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    watched = Watched(tmp_path, patches)
    safetensors.save_model(torch.nn.Linear(2, 2), str(tmp_path / "model.safetensors"))
    watched.recorder.close()
    assert [name for _, _, name in watched.events()] == ["model.safetensors"]
