"""unwatched: while dpdoctor's hooks are out nothing but ends of steps is seen, and then all is as before."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpdoctor.worker.ablations._hooks import NOT_ALIKE, SEVERAL, Hooks, Passed
from dpdoctor.worker.ablations.unwatched import ABLATION
from dpdoctor.worker.modes.ddp import MODE as DDP
from dpdoctor.worker.modes.native import MODE as NATIVE
from tests.builders.rig import Rig

FORWARD = 5
# Ten rows in batches of four: the last one has two.
SIZES = [4, 4, 2]


class Ticking(nn.Linear):
    """Takes FORWARD ticks of a clock."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(3, 1)
        self._tick = rig.clock.tick

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._tick(FORWARD)
        return super().forward(x)


class Script:
    """Trains a model on a loader for ever; `optimizer` takes its steps."""

    def __init__(self, rig: Rig, *, workers: int = 0) -> None:
        self.model = Ticking(rig)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = DataLoader(TensorDataset(torch.ones(10, 3)), batch_size=4, num_workers=workers)
        self._training = self._train()

    def _train(self) -> Iterator[None]:
        while True:
            for (x,) in self.loader:
                self.optimizer.zero_grad()
                self.model(x).mean().backward()
                self.optimizer.step()
                yield

    def train(self, num_steps: int) -> None:
        for _ in range(num_steps):
            next(self._training)


def sizes(rig: Rig) -> list[int]:
    """Return the samples of each step that was seen."""
    return [step.counted.samples_drawn for step in rig.steps]


class Taken(list[Passed]):
    """Takes the steps that passed, and goes on with so many; it ends with those."""

    def __init__(self, hooks: Hooks, *numbers: int) -> None:
        super().__init__()
        self._hooks, self._numbers = hooks, list(numbers)
        hooks._on_step = self._take

    def _take(self) -> None:
        self.extend(self._hooks.passed())
        if self._numbers:
            self._hooks.begin(self._numbers.pop(0))
        else:
            self._hooks.put_back()


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_trained_meanwhile_is_not_seen_and_what_follows_is_seen_as_before(rig: Rig, workers: int) -> None:
    script, hooks = Script(rig, workers=workers), rig.hooks()
    script.train(16)
    before, batches = sizes(rig), len(rig.batches)
    assert before == (SIZES * 6)[:16]
    taken = Taken(hooks, 5)
    hooks.take_out()
    assert hooks.are_out
    script.train(6)
    assert not hooks.are_out
    assert (sizes(rig), len(rig.batches)) == (before, batches)
    assert [step.end_ns - step.begin_ns for step in taken] == [FORWARD] * 6
    assert [step.is_edge for step in taken] == [False, False, True, False, False, True]
    script.train(3)
    # The step that follows is taken for one at an edge; whose samples count.
    assert sizes(rig)[16:] == (SIZES * 9)[22:25]
    assert len(rig.batches) == batches + 3


def test_an_optimizer_that_is_built_meanwhile_has_steps_followed_again(rig: Rig) -> None:
    script, hooks = Script(rig), rig.hooks()
    script.train(16)
    taken = Taken(hooks, 3, 3)
    hooks.take_out()
    script.train(1)
    other = torch.optim.SGD(script.model.parameters(), lr=0.1)
    script.train(1)
    assert len(rig.steps) == 17, "it ended as any other"
    del other
    hooks.put_back()
    script.train(2)
    assert sizes(rig)[-2:] == (SIZES * 7)[18:20]
    assert len(taken) == 1


def test_steps_are_to_be_alike_and_of_one_optimizer(rig: Rig) -> None:
    script = Script(rig)
    script.train(1)
    assert ABLATION.unfit(context(rig.hooks())) == NOT_ALIKE
    script.train(10)
    assert ABLATION.unfit(context(rig.hooks())) is None
    other = torch.optim.SGD(script.model.parameters(), lr=0.1)
    assert ABLATION.unfit(context(rig.hooks())) == SEVERAL
    del other


@pytest.mark.parametrize(("share", "reason"), [(0.004, "watching takes 0.4% of a step"), (0.006, None), (None, None)])
def test_what_hardly_takes_any_of_a_step_is_not_taken_out(rig: Rig, share: float | None, reason: str | None) -> None:
    Script(rig).train(11)
    assert (ABLATION.unfit(context(rig.hooks(share))) or "").startswith(reason or "")
    assert (ABLATION.unfit(context(rig.hooks(share))) is None) == (reason is None)


def test_it_is_for_scripts_that_are_never_run_bare() -> None:
    assert ABLATION.applies(NATIVE)
    assert not ABLATION.applies(DDP)


def context(hooks: Hooks) -> SimpleNamespace:
    return SimpleNamespace(hooks=hooks)
