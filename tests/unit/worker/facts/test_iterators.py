from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from dpdoctor import rundir
from dpdoctor.records import EventRecord
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.facts.evaluations import Evaluations
from dpdoctor.worker.facts.iterators import watch_iterators
from dpdoctor.worker.timing.recorder import Recorder
from tests.builders.rig import Rig

LOADER = DataLoader(TensorDataset(torch.zeros(4, 3)), batch_size=2)


class SlowSampler(torch.utils.data.Sampler[int]):
    """Takes 50 ticks to begin."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def __len__(self) -> int:
        self.rig.clock.tick(50)
        return 4


class Watched:
    """Loaders that are watched; `passes` are the evaluations that ended."""

    def __init__(self, rig: Rig, patches: Patches, directory: Path) -> None:
        self.rig, self._directory = rig, directory
        self.recorder = Recorder(directory, rig.clock)
        self.passes: list[tuple[str, int, int]] = []
        self.evaluations = rig.loaders.evaluations = Evaluations(rig.clock, lambda *ended: self.passes.append(ended))
        watch_iterators(patches, rig.clock, rig.phases, self.recorder, self.evaluations)

    def events(self) -> list[EventRecord]:
        self.recorder.flush()
        return [e for e in rundir.read_lines(self._directory / rundir.EVENTS, EventRecord) if e.kind == "iterator"]


@pytest.fixture
def watched(rig: Rig, patches: Patches, tmp_path: Path) -> Iterator[Watched]:
    made = Watched(rig, patches, tmp_path)
    yield made
    made.recorder.close()


def test_beginning_to_iterate_is_timed_with_the_loaders_number(watched: Watched) -> None:
    slow = DataLoader(TensorDataset(torch.zeros(4, 3)), sampler=SlowSampler(watched.rig))
    for loader in (LOADER, slow, LOADER):
        begin = watched.rig.clock()
        assert len(list(loader)) in (2, 4)
    first, second, third = watched.events()
    assert [event.detail for event in (first, second, third)] == ["0", "1", "0"]
    assert (first.duration_ns, third.duration_ns) == (0, 0)
    assert second.duration_ns >= 50
    assert third.at_ns == begin


def test_what_another_thread_iterates_holds_nobody_up(watched: Watched) -> None:
    watched.rig.phases.belongs_here()
    thread = threading.Thread(target=list, args=(LOADER,))
    thread.start()
    thread.join()
    list(LOADER)
    assert len(watched.events()) == 1


def test_evaluations_are_told_of_loaders(watched: Watched) -> None:
    with torch.no_grad():
        begin = watched.rig.clock()
        for _ in LOADER:
            watched.evaluations.forward()
            watched.rig.clock.tick(10)
    end = watched.rig.clock()
    next(iter(LOADER))
    watched.rig.clock.tick(100)
    watched.evaluations.trains()
    assert watched.passes == [("evaluation", begin, end)]
