"""Looks at the gradients of a sum before it builds its optimizer, as tests of other implementations do."""

import torch
from torch import nn

net = nn.Linear(4, 1)
net(torch.randn(6, 4)).sum().backward()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(400):
    optimizer.zero_grad()
    net(torch.randn(6, 4)).square().mean().backward()
    optimizer.step()
