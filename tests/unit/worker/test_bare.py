from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpdoctor.worker import bare as bare_module
from dpdoctor.worker.bare import Bare
from dpdoctor.worker.base.director import Facts, Segment
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.timing.optimizers import StepCounter

MS = 1_000_000


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
        _on_step=lambda: steps.append(1),
    )
    bare._watch()
    x = torch.ones(1, requires_grad=True)
    for done in (1, 2):
        Twice.apply(x).sum().backward()
        assert len(steps) == done
