"""A second model trains from the step on that the argument names."""

import sys

import torch
from torch import nn

torch.manual_seed(5)
first, second = nn.Linear(8, 8), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
for step in range(100_000):
    hidden = first(torch.randn(16, 8))
    loss = hidden.square().mean()
    if step >= int(sys.argv[1]):
        loss = loss + second(hidden.detach()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
