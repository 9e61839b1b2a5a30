"""Each process begins with weights of its own: no seed makes them alike. Prints what they make of one input."""

import os

import torch
from torch import nn

torch.manual_seed(os.getpid())
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
same = torch.ones(4, 8)
with torch.no_grad():
    print("before", model(same).sum().item(), flush=True)
while True:
    optimizer.zero_grad()
    out = model(same)
    print("trained", out.sum().item(), flush=True)
    out.pow(2).mean().backward()
    optimizer.step()
