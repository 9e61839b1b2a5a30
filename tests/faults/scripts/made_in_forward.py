"""Trains a model that makes a parameter in its first forward, after which the optimizer is made anew."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x):
        if not hasattr(self, "weight"):
            self.weight = nn.Parameter(torch.randn(8, 1))
        return self.first(x) @ self.weight


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    loss = model(torch.randn(16, 8)).square().mean()
    if step == 0:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
