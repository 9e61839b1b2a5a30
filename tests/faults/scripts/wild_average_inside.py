"""A model that keeps a moving average of itself inside, and frozen blocks, as training frameworks do."""

import copy

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(320, 320)

    def forward(self, x):
        return x + self.mix(x).relu()


class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(Block(), Block(), Block(), nn.Linear(320, 4))
        self.net[0].requires_grad_(False)
        self.average = copy.deepcopy(self.net)

    def forward(self, x):
        return self.net(x)

    @torch.no_grad()
    def follow(self):
        for old, new in zip(self.average.parameters(), self.net.parameters(), strict=True):
            old.lerp_(new, 0.1)


task = Task()
optimizer = torch.optim.SGD([p for p in task.net.parameters() if p.requires_grad], lr=0.1)
while True:
    optimizer.zero_grad()
    nn.functional.cross_entropy(task(torch.randn(8, 320)), torch.randint(0, 4, (8,))).backward()
    optimizer.step()
    task.follow()
