"""Compiles its model, and meets a shape that it has not seen in the step after `sys.argv[1]`."""

import sys

import torch
from torch import nn

model = torch.compile(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)), backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
while True:
    x = torch.randn(8 if step < int(sys.argv[1]) else 12, 8)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    step += 1
