from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dpdoctor.worker.ablations import amp
from dpdoctor.worker.ablations._base import AblationContext, Precision
from dpdoctor.worker.ablations.amp import Amp
from dpdoctor.worker.base import structure
from dpdoctor.worker.base.mode import Mode
from dpdoctor.worker.modes.single import MODE as SINGLE
from tests.builders.models import sgd
from tests.builders.rig import Rig


class Model(nn.Module):
    """Returns a tensor in a container, and notes in what type it computes; `fails` under autocast on demand."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.fails = fails
        self.computed: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = self.linear(x)
        self.computed.append(y.dtype)
        if self.fails and y.dtype == torch.bfloat16:
            raise TypeError("no bfloat16 here\nand more")
        return {"y": [y], "what": "linear"}


@pytest.fixture(autouse=True)
def able_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute on a processor that has instructions for bfloat16."""
    monkeypatch.setattr(amp, "_has_instructions", lambda _: True)


def context(rig: Rig, mode: Mode = SINGLE, precision: Precision | None = None) -> AblationContext:
    return AblationContext(
        mode=mode,
        world_size=1,
        wrapping=rig.wrapping,
        watch=rig.watch,
        tally=rig.tally,
        replay=rig.loaders.replay,
        companion=rig.loaders.companion,
        precision=precision or Precision(),
        optimizers=rig.optimizers,
        optimizer_share=lambda: None,
        hooks=rig.hooks(),
    )


def train(model: nn.Module) -> torch.Tensor:
    y = model(torch.ones(2, 3))["y"][0]
    y.sum().backward()
    return y


def test_the_forward_computes_in_half_and_returns_single(rig: Rig) -> None:
    model, ablation = Model(), Amp()
    optimizer = sgd(model)
    train(model)
    assert ablation.unfit(context(rig)) is None
    ablation.begin(context(rig))
    assert train(model).dtype == torch.float32
    assert ablation.end(context(rig)) is None
    train(model)
    assert model.computed == [torch.float32, torch.bfloat16, torch.float32]
    assert all(
        p.grad is not None and p.grad.dtype == torch.float32 for g in optimizer.param_groups for p in g["params"]
    )


def test_a_forward_that_cannot_take_it_runs_plainly_and_ends_the_ablation(rig: Rig) -> None:
    model, ablation = Model(fails=True), Amp()
    optimizer = sgd(model)
    train(model)
    ablation.begin(context(rig))
    train(model)
    train(model)
    fault = ablation.end(context(rig))
    assert model.computed == [torch.float32, torch.bfloat16, torch.float32, torch.float32]
    assert fault is not None
    assert fault.final is True
    assert "TypeError" in fault.reason
    assert fault.reason.endswith(": no bfloat16 here")
    assert optimizer.param_groups


def test_a_processor_that_has_no_instructions_for_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amp, "_has_instructions", lambda _: False)
    assert "no instructions for bfloat16" in (Amp().unfit(context(rig)) or "")


@dataclasses.dataclass(frozen=True)
class Output:
    """What a model returns that is none of torch's containers."""

    y: torch.Tensor
    parts: list[torch.Tensor]
    name: str = "output"


class Remembers(nn.Module):
    """Keeps what it computed, as a recurrent model does, and returns an object."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("last", torch.zeros(2, 3))
        self.register_buffer("low", torch.zeros(1, dtype=torch.bfloat16))
        self.state = (torch.zeros(2, 3), 1)

    def forward(self, x: torch.Tensor) -> Output:
        y = self.linear(x)
        assert isinstance(self.last, torch.Tensor)
        assert self.last.dtype in {torch.float32, y.dtype}
        self.last, self.state = y.detach(), (y.detach(), 1)
        return Output(y, [y, x])


def test_what_a_model_keeps_is_single_again_when_the_window_ends(rig: Rig) -> None:
    model, ablation = Remembers(), Amp()
    optimizer = sgd(model)
    model(torch.ones(2, 3)).y.sum().backward()
    ablation.begin(context(rig))
    found = model(torch.ones(2, 3))
    assert model.last.dtype == torch.bfloat16
    assert [part.dtype for part in (found.y, *found.parts)] == [torch.float32] * 3
    assert found.name == "output"
    found.y.sum().backward()
    assert ablation.end(context(rig)) is None
    assert [model.last.dtype, model.state[0].dtype, model.low.dtype] == [torch.float32, torch.float32, torch.bfloat16]
    model(torch.ones(2, 3)).y.sum().backward()
    assert optimizer.param_groups


@dataclasses.dataclass
class Node:
    """Leads back to itself."""

    y: torch.Tensor
    root: Node | None = None


@dataclasses.dataclass
class Stubborn:
    """Cannot be copied."""

    y: torch.Tensor

    def __copy__(self) -> Stubborn:
        raise TypeError("no copies of this")


class Returns(nn.Module):
    """Returns what `make` makes of what it computed, and counts how often it ran."""

    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.make, self.runs = nn.Linear(3, 1), make, 0

    def forward(self, x: torch.Tensor) -> Any:
        self.runs += 1
        return self.make(self.linear(x))


def in_itself(y: torch.Tensor) -> Node:
    node = Node(y)
    node.root = node
    return node


def test_what_leads_back_to_itself_is_cast_and_still_does(rig: Rig) -> None:
    model, ablation = Returns(in_itself), Amp()
    optimizer = sgd(model)
    model(torch.ones(2, 3)).y.sum().backward()
    ablation.begin(context(rig))
    found = model(torch.ones(2, 3))
    assert (found.y.dtype, found.root) == (torch.float32, found)
    found.y.sum().backward()
    assert ablation.end(context(rig)) is None
    assert (model.runs, bool(optimizer.param_groups)) == (2, True)


def test_what_cannot_be_cast_is_no_fault_of_the_forward_which_runs_once(rig: Rig) -> None:
    model, ablation = Returns(Stubborn), Amp()
    optimizer = sgd(model)
    model(torch.ones(2, 3)).y.sum().backward()
    ablation.begin(context(rig))
    model(torch.ones(2, 3)).y.sum().backward()
    assert model.runs == 2
    model(torch.ones(2, 3)).y.sum().backward()
    fault = ablation.end(context(rig))
    assert fault is not None
    assert fault.reason == "what the forward returns cannot be cast: TypeError: no copies of this"
    assert optimizer.param_groups


@pytest.mark.parametrize(
    "keep",
    [
        lambda y: {"h": y},
        lambda y: [(y, y)],
        lambda y: {"layers": [{"k": y}, ((y,), [y])]},
        in_itself,
    ],
    ids=["dict", "tuples in a list", "nested", "dataclass"],
)
def test_state_in_containers_is_single_again_and_they_are_the_same(rig: Rig, keep: Callable[[Any], Any]) -> None:
    model, ablation = Returns(lambda y: y), Amp()
    optimizer = sgd(model)
    model(torch.ones(2, 3)).sum().backward()
    low = torch.zeros(1, dtype=torch.bfloat16)
    model.state, model.own = keep(torch.ones(1)), keep(low)
    ablation.begin(context(rig))
    state = model.state = keep(model(torch.ones(2, 3)).bfloat16())
    model.own = keep(low)
    assert ablation.end(context(rig)) is None
    assert model.state is state
    assert {tensor.dtype for tensor in structure.tensors(model.state)} == {torch.float32}
    assert {tensor.dtype for tensor in structure.tensors(model.own)} == {torch.bfloat16}, "it was half before"
    assert optimizer.param_groups


class Threads(Mode):
    in_threads = True


@pytest.mark.parametrize(
    ("dtype", "mode", "said"),
    [
        (torch.float64, SINGLE, "another type than float32"),
        (torch.float32, Threads(), "threads of its own"),
    ],
)
def test_where_it_cannot_run(rig: Rig, dtype: torch.dtype, mode: Mode, said: str) -> None:
    model = nn.Linear(3, 1).to(dtype)
    optimizer = sgd(model)
    model(torch.ones(1, 3, dtype=dtype)).sum().backward()
    assert said in (Amp().unfit(context(rig, mode)) or "")
    assert optimizer.param_groups
