from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dpdoctor.worker.base.mode import Passes, WrapOptions
from dpdoctor.worker.modes.ddp import DDP


def options(**fields: Any) -> WrapOptions:
    """Return how to wrap; without `warn`, a warning fails the test."""
    return WrapOptions(**{"has_unused": False, "fsdp_wrap": None, "optimizers": (), "warn": pytest.fail} | fields)


def converted(mode: DDP, module: nn.Module, how: WrapOptions | None = None) -> Callable[..., Any]:
    return mode.around(module, mode.convert(module, how or options()))


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_module_is_wrapped_while_a_graph_holds_buffers_that_it_shares(is_inside: bool) -> None:
    mode, told = DDP(), set()
    mode.passes, how = Passes(), options(warn=told.add)
    norm = nn.BatchNorm1d(4, affine=False)
    first = nn.Sequential(nn.Linear(4, 4), norm)
    second = nn.Sequential(first if is_inside else norm, nn.Linear(4, 1))
    x = torch.rand(8, 4)
    by_hand = copy.deepcopy((first, second))
    loss = converted(mode, first)(x).sum()
    (loss + converted(mode, second, how)(x).sum()).backward()
    sum(module(x).sum() for module in by_hand).backward()
    for module, alike in zip((first, second), by_hand, strict=True):
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(parameter.grad, alike.get_parameter(name).grad)


@pytest.mark.usefixtures("ranks")
def test_a_hook_is_told_where_it_acts_on_a_parameter_that_the_wrapper_reduces() -> None:
    told: list[str] = []
    model = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in ("frozen", "average", "trained")})
    for parameter in model.parameters():
        parameter.register_hook(torch.clone)
    model["frozen"].requires_grad_(requires_grad=False)
    DDP().convert(model, options(ignored=frozenset({"average.weight"}), warn=told.append))
    (hook,) = [text for text in told if "registered on the parameter" in text]
    assert "registered on the parameter trained.weight (register_hook), acts on each rank's own gradient" in hook


@pytest.mark.usefixtures("ranks")
def test_what_was_frozen_when_it_was_wrapped_and_is_trained_since_is_named() -> None:
    mode, model = DDP(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    mode.passes = Passes()
    model[0].requires_grad_(requires_grad=False)
    mode.convert(model, options())
    assert not mode.why_apart()
    model[0].requires_grad_()
    assert "0.weight, which was frozen then, is trained since" in mode.why_apart()


class Halves(nn.Module):
    """A model that leaves a layer out; while it is `deciding` it returns classes."""

    deciding = False

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.used = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x).argmax(1) if self.deciding else self.used(x)


@pytest.mark.usefixtures("ranks")
def test_what_the_last_forward_returned_tells_why_gradients_are_lost() -> None:
    mode, model, x = DDP(), Halves(), torch.rand(8, 4)
    mode.passes = Passes()
    call = converted(mode, model, options(has_unused=True))
    lost = RuntimeError("Expected to mark a variable ready only once.")
    model.deciding = True
    call(x)
    told = mode.explain(lost, "train.py:3")
    assert told is not None
    assert "what Halves returns, of class Tensor, has none that needs a gradient" in told
    model.deciding = False
    call(x).sum().backward()
    assert mode.explain(lost, "train.py:3") is None
