"""Steps of an optimizer that a GradScaler takes, or skips."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from tests.builders.models import SlowLinear, slow_sgd
from tests.builders.rig import Rig


def scaler(scale: float) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10_000)


def test_a_scaled_step_is_one_step_that_ends_after_the_scalers(rig: Rig) -> None:
    module = SlowLinear(rig.clock)
    optimizer, scaling = slow_sgd(module, rig.clock), scaler(8.0)
    for _ in range(2):
        optimizer.zero_grad()
        scaling.scale(module(torch.randn(4, 3)).mean()).backward()
        scaling.step(optimizer)
        scaling.update()
    assert [step.ticks["optimizer"] for step in rig.steps] == [10, 10]


def test_a_step_that_the_scaler_skips_counts(rig: Rig) -> None:
    module = nn.Linear(3, 1)
    optimizer, scaling = SGD(module.parameters(), lr=0.1), scaler(8.0)
    before = module.weight.detach().clone()
    for _ in range(2):
        optimizer.zero_grad()
        scaling.scale(module(torch.full((4, 3), torch.inf)).mean()).backward()
        scaling.step(optimizer)
        scaling.update()
    assert torch.equal(module.weight, before)
    assert len(rig.steps) == 2


def test_a_scaled_step_that_fails_does_not_stop_the_counting(rig: Rig) -> None:
    module = nn.Linear(3, 1)
    optimizer, scaling = SGD(module.parameters(), lr=0.1), scaler(8.0)
    for _ in range(2):
        optimizer.zero_grad()
        scaling.scale(module(torch.randn(4, 3)).mean()).backward()
        scaling.step(optimizer)
        with pytest.raises(RuntimeError):
            scaling.step(optimizer)
        scaling.update()
    assert len(rig.steps) == 2
