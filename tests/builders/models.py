"""Small models that tests of conversion and of hooks train."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import SGD

from tests.builders.handclock import HandClock

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def sgd(*modules: nn.Module) -> SGD:
    return SGD([p for module in modules for p in module.parameters()], lr=0.1)


class Net(nn.Module):
    """A model of two parts; `loss` reaches its forward without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x).mean()


class SlowLinear(nn.Linear):
    """Takes 100 ticks forward and 1,000 backward."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__(3, 1)
        self.clock = clock

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.tick(100)
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(lambda _: self.clock.tick(1000))
        return y


class SlowSGD(SGD):
    """Takes 10 ticks for a step."""

    clock: HandClock

    def step(self, closure: Any = None) -> Any:
        self.clock.tick(10)
        return super().step(closure)


def backward(module: nn.Module) -> torch.Tensor:
    loss = module(torch.randn(4, 3)).pow(2).mean()
    loss.backward()
    return loss.detach()


def slow_sgd(module: nn.Module, clock: HandClock) -> SlowSGD:
    optimizer = SlowSGD(module.parameters(), lr=0.1)
    optimizer.clock = clock
    return optimizer
