"""Modules around one model, all trained: `together`, `in_turn` or, one inside of the other, in `levels`.

Levels are also called in turn, the innermost first (`levels_in_turn`) or the outermost (`levels_down`).

A second argument: it has a buffer that its backward pass needs, of which a broadcast may be a change `in_place`, as in
torch 2.11.
"""

import contextlib
import itertools
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


if sys.argv[2:] == ["in_place"]:
    torch.autograd._unsafe_preserve_version_counter = contextlib.nullcontext


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.rand(16))

    def forward(self, x):
        return x * self.scale


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner


class Fits(Around):
    def forward(self, x):
        return (self.inner(x) - x).square().mean()


class Agrees(Around):
    def forward(self, x):
        return (self.inner(x) - self.inner(1.1 * x)).square().mean()


class Doubles(Around):
    def forward(self, x):
        return 2 * self.inner(x)


torch.manual_seed(5)
net = nn.Sequential(nn.Linear(8, 16), Scales() if sys.argv[2:] else nn.Identity(), nn.ReLU(), nn.Linear(16, 8))
fits, agrees = Fits(net), Agrees(net)
doubles = Doubles(fits)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
levels = [lambda x: net(x).square().mean(), fits, doubles]
in_turn = itertools.cycle(levels[::-1] if sys.argv[1] == "levels_down" else levels)
while True:
    for (x,) in DataLoader(TensorDataset(torch.randn(160, 8)), batch_size=8):
        optimizer.zero_grad()
        if sys.argv[1] == "together":
            loss = fits(x) + agrees(x)
        elif sys.argv[1] == "levels":
            loss = net(x).square().mean() + fits(x) + doubles(x)
        elif sys.argv[1] in ("levels_in_turn", "levels_down"):
            loss = next(in_turn)(x)
        else:
            agrees(x).backward()
            loss = fits(x)
        loss.backward()
        optimizer.step()
        print(loss.item(), flush=True)
