"""Every step trains on all of the data at once, as small graphs do."""

import torch
from torch import nn

data = torch.linspace(0, 1, 60).reshape(20, 3)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(10_000):
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
