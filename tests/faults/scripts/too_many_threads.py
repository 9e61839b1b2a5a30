"""Trains beside as many threads as `sys.argv[1]` says that compute, too."""

import hashlib
import sys
import threading

import torch
from torch import nn

DATA = bytes(1 << 20)


def compute():
    while True:
        hashlib.sha256(DATA)  # without the interpreter's lock


for _ in range(int(sys.argv[1])):
    threading.Thread(target=compute, daemon=True).start()
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
