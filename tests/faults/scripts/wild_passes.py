"""Draws its batches by itself; what enters the model is more than its samples, or the same ones once more."""

import itertools
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy


class Pooling(nn.Module):
    """Classifies graphs, whose nodes lie in one tensor."""

    def __init__(self):
        super().__init__()
        self.nodes, self.graph = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16)), nn.Linear(16, 2)

    def forward(self, x, begins):
        nodes = self.nodes(x)
        return self.graph(torch.stack([part.sum(0) for part in torch.tensor_split(nodes, begins[1:-1])]))


def sam():
    x, y = torch.randn(6, 8), torch.randint(0, 2, (6,))
    cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * parameter.grad)
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()


def attack():
    x, y = torch.randn(6, 8, requires_grad=True), torch.randint(0, 2, (6,))
    cross_entropy(model(x), y).backward()
    cross_entropy(model((x + 0.1 * x.grad.sign()).detach()), y).backward()


def views():
    x = torch.randn(6, 8)
    first, second = model(torch.cat([x + 0.1 * torch.randn(6, 8), x + 0.1 * torch.randn(6, 8)])).chunk(2)
    (first - second).square().mean().backward()


def chunks():
    first, second = model(torch.randn(12, 8)).chunk(2)
    (first - second).square().mean().backward()


def noise():
    x, y = torch.randn(6, 8), torch.randint(0, 2, (6,))
    cross_entropy(model(x), y).backward()
    cross_entropy(model(x + 0.1 * torch.randn(6, 8)), y).backward()


def repeated():
    x, y = torch.randn(6, 8), torch.randint(0, 2, (6,))
    cross_entropy(model(torch.cat([x, x])), torch.cat([y, y])).backward()


def micro_batches():
    for _ in range(2):
        cross_entropy(model(torch.randn(6, 8)), torch.randint(0, 2, (6,))).backward()


def graphs():
    begins = [0, *itertools.accumulate(torch.randint(3, 9, (6,)).tolist())]
    cross_entropy(model(torch.randn(begins[-1], 8), torch.tensor(begins)), torch.randint(0, 2, (6,))).backward()


model = Pooling() if sys.argv[1] == "graphs" else nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train = globals()[sys.argv[1]]
while True:
    optimizer.zero_grad()
    train()
    optimizer.step()
