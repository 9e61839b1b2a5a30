from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from dpdoctor import rundir
from dpdoctor.records import StepRecord, WindowRecord
from dpdoctor.worker import bare as bare_module
from dpdoctor.worker.bare import Bare
from dpdoctor.worker.base.director import Facts, Segment
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.timing.optimizers import StepCounter
from dpdoctor.worker.timing.recorder import Recorder
from tests.builders.handclock import HandClock

MS = 1_000_000
TASK = SimpleNamespace(spec=SimpleNamespace(named="train.py"))


@pytest.mark.parametrize(("on_gpu", "step_s"), [(False, 0.002), (True, 0.02)])
def test_on_a_gpu_windows_are_sized_by_the_wall_of_those_before(
    monkeypatch: pytest.MonkeyPatch, on_gpu: bool, step_s: float
) -> None:
    """The host queues ten steps in 2 ms each; the GPU is done with them after 200 ms."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    done = Segment(kind="measure", num_steps=10, skip=1)
    told: list[Facts] = []

    def after(_: Segment, facts: Facts) -> Segment:
        told.append(facts)
        return done

    nothing: Any = lambda *_, **__: None  # noqa: E731
    bare = Bare.__new__(Bare)
    vars(bare).update(
        _segment=done,
        _clock=lambda: 200 * MS,
        _close=nothing,
        _open=nothing,
        _counter=SimpleNamespace(elect=lambda: False),
        _director=SimpleNamespace(after=after),
        _heartbeat=SimpleNamespace(enter=nothing),
        _durations_ns=[2 * MS] * 10,
        _begun_ns=0,
        _first_ns=0,
        _number=1,
        _done=11,
    )
    bare._edge()
    assert [facts.step_s for facts in told] == [pytest.approx(step_s)]


class Twice(torch.autograd.Function):
    """Runs two backward passes inside of its own, as two checkpointed blocks do."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            with torch.enable_grad():
                inside = torch.ones(1, requires_grad=True)
                (inside * inside).sum().backward()
        return gradient


def test_backward_passes_inside_of_another_are_no_steps_of_their_own(
    monkeypatch: pytest.MonkeyPatch, patches: Patches
) -> None:
    monkeypatch.setattr(bare_module, "Patches", lambda: patches)
    steps: list[int] = []
    bare = Bare.__new__(Bare)
    vars(bare).update(
        _clock=lambda: 0,
        _counter=StepCounter(),
        _ending=SimpleNamespace(check=lambda: None),
        _on_step=lambda *_: steps.append(1),
        _task=TASK,
    )
    bare._watch()
    x = torch.ones(1, requires_grad=True)
    for done in (1, 2):
        Twice.apply(x).sum().backward()
        assert len(steps) == done


SEGMENTS = (
    Segment(kind="warmup", num_steps=5),
    Segment(kind="measure", num_steps=8, skip=2),
    Segment(kind="measure", num_steps=9, skip=2),
)


@pytest.mark.parametrize("num_optimizers", [1, 2])
def test_records_are_those_of_a_clock_at_each_end(
    num_optimizers: int, patches: Patches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one optimizer torch itself tells the ends; those of two are followed. Between steps, 100 ns are nobody's."""
    monkeypatch.setattr(bare_module, "Patches", lambda: patches)
    clock, following = HandClock(1), iter(SEGMENTS[1:])
    directory = rundir.rank_dir(tmp_path, 0)
    directory.mkdir()
    monkeypatch.setattr(bare_module, "synchronise", lambda: clock.tick(100))
    bare = Bare.__new__(Bare)
    nothing: Any = lambda *_: None  # noqa: E731
    vars(bare).update(
        _clock=clock,
        _counter=StepCounter(),
        _ending=SimpleNamespace(check=nothing),
        _recorder=Recorder(directory, clock),
        _heartbeat=SimpleNamespace(enter=nothing, beat=nothing),
        _director=SimpleNamespace(after=lambda *_: next(following)),
        _segment=SEGMENTS[0],
        _durations_ns=[],
        _ends_ns=[],
        _edges=set(),
        _interrupted=set(),
        _replaced=0,
        _num_measured=0,
        _number=0,
        _done=0,
        _due=1,
        _beat_due_ns=0,
        _task=TASK,
        _faults_before=0,
        _last_ns=1,
    )
    bare._watch()
    module = nn.Linear(3, 1)
    optimizer, *_others = [torch.optim.SGD(module.parameters(), lr=0.1) for _ in range(num_optimizers)]
    for step in range(1, 25):
        if step % 5 == 1:
            next(iter(DataLoader([torch.ones(3)])))  # type: ignore[arg-type]
        clock.tick(step)
        bare._counter.num_replaced = int(step >= 14)
        module(torch.ones(3)).sum().backward()
        optimizer.step()
    bare._keep()
    bare._recorder.flush()
    steps = rundir.read_lines(directory / rundir.STEPS, StepRecord)
    assert [(step.step, step.duration_ns) for step in steps] == [(step, step) for step in range(1, 25)]
    assert [step.step for step in steps if step.epoch_edge] == [1, 6, 11, 16, 21]
    assert [step.step for step in steps if step.interrupted] == [14]
    in_segments = [(0, True)] * 5 + [(1, False)] * 2 + [(1, True)] * 8 + [(2, False)] * 2 + [(2, True)] * 7
    assert [(step.window, step.counted) for step in steps] == in_segments
    begins = [(step.begin_ns - before.begin_ns - before.duration_ns) // 100 for before, step in pairwise(steps)]
    assert [number for number, ticks in enumerate(begins, 2) if ticks] == [6, 8, 16, 18]
    windows = rundir.read_lines(directory / rundir.WINDOWS, WindowRecord)
    assert [(window.first_step, window.num_steps) for window in windows] == [(1, 5), (8, 8)]
    assert all(window.page_faults is not None for window in windows)
