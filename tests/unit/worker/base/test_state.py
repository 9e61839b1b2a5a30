from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import SGD, AdamW, Optimizer

from dpdoctor.worker.base.state import Snapshot, num_bytes


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def train(module: nn.Module, optimizer: Optimizer, *, seed: int, steps: int = 3) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 3, generator=generator)

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = module(x).pow(2).mean()
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())  # type: ignore[attr-defined]
    return losses


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: AdamW(p, lr=0.01),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_as_if_nothing_had_been_between(name: str) -> None:
    module, twin = model(), model()
    optimizer, other = OPTIMIZERS[name](module.parameters()), OPTIMIZERS[name](twin.parameters())
    assert train(module, optimizer, seed=1) == train(twin, other, seed=1)
    snapshot = Snapshot([module], [optimizer], [])
    train(module, optimizer, seed=2, steps=5)
    snapshot.restore()
    assert train(module, optimizer, seed=3) == train(twin, other, seed=3)
    assert all(map(torch.equal, module.state_dict().values(), twin.state_dict().values()))


def test_tensors_stay_the_same_objects() -> None:
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    train(module, optimizer, seed=0)
    tensors = [*module.parameters(), *module.buffers(), *(p.grad for p in module.parameters())]
    momenta = [optimizer.state[p]["momentum_buffer"] for p in module.parameters()]
    snapshot = Snapshot([module], [optimizer], [])
    module[1].running_mean = torch.ones(4)  # a buffer that is replaced, not changed
    snapshot.restore()
    found = [*module.parameters(), *module.buffers(), *(p.grad for p in module.parameters())]
    assert all(a is b for a, b in zip(tensors, found, strict=True))
    assert all(optimizer.state[p]["momentum_buffer"] is m for p, m in zip(module.parameters(), momenta, strict=True))


@pytest.mark.parametrize("had", [True, False])
def test_gradients_come_back_because_a_script_may_update_by_hand(had: bool) -> None:
    module = nn.Linear(2, 1, bias=False)
    if had:
        module.weight.grad = torch.ones(1, 2)
    snapshot = Snapshot([module], [], [])
    module(torch.full((1, 2), 5.0)).sum().backward()
    snapshot.restore()
    found = module.weight.grad
    assert (None if found is None else found.tolist()) == ([[1.0, 1.0]] if had else None)


def test_a_state_that_is_new_since_is_dropped() -> None:
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    snapshot = Snapshot([module], [optimizer], [])
    train(module, optimizer, seed=0)
    snapshot.restore()
    assert not optimizer.state


def test_learning_rates_are_the_schedulers() -> None:
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1)
    snapshot = Snapshot([module], [optimizer], [])
    optimizer.param_groups[0]["lr"] = 0.05
    snapshot.restore()
    assert optimizer.param_groups[0]["lr"] == 0.05


class Finding(Optimizer):
    """Finds a step size by itself, which it keeps in its groups."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1.0, "d": 1e-6, "estimates": [torch.zeros(1)], "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override] # noqa: ARG002
        for group in self.param_groups:
            group["d"] *= 2
            group["estimates"][0].add_(1)
            for parameter in group["params"]:
                parameter.sub_(group["d"])


def test_what_an_optimizer_finds_comes_back_and_what_a_scheduler_set_stays() -> None:
    module = model()
    optimizer = Finding(module.parameters())
    (group,) = optimizer.param_groups
    (estimate,) = group["estimates"]
    snapshot = Snapshot([module], [optimizer], [])
    optimizer.step()
    group["lr"] = group["weight_decay"] = 0.5
    snapshot.restore()
    assert (group["d"], group["lr"], group["weight_decay"]) == (1e-6, 0.5, 0.5)
    assert group["estimates"][0] is estimate
    assert estimate.item() == 0
    assert group["params"] == list(module.parameters())


def test_a_scaler_gets_its_scale_back_and_forgets_an_overflow() -> None:
    module = nn.Linear(2, 1)
    optimizer = SGD(module.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=8.0, growth_interval=1000)

    def step(factor: float) -> None:
        optimizer.zero_grad()
        scaler.scale(module(torch.ones(1, 2)).sum() * factor).backward()
        scaler.step(optimizer)

    step(1.0)
    scaler.update()
    before = copy.deepcopy(scaler.state_dict())
    snapshot = Snapshot([module], [optimizer], [scaler])
    step(float("inf"))
    scaler.update()
    assert scaler.get_scale() < 8.0
    step(float("inf"))
    snapshot.restore()
    scaler.update()
    assert scaler.get_scale() == before["scale"]


def test_the_memory_is_that_of_parameters_gradients_buffers_and_states() -> None:
    module = model()
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    train(module, optimizer, seed=0)
    parameters = sum(p.nbytes for p in module.parameters())
    assert num_bytes([module], [optimizer]) == 3 * parameters + sum(b.nbytes for b in module.buffers())
