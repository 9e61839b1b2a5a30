"""Trains in an order that numpy draws before each epoch, which `seeded` seeds; `read`: on what a loader gave at once,
`slices`: in each epoch, in the loader's order; `own`: by generators of its own, so that nobody seeds what the model draws.

`evaluates` looks at the loss of samples that each step draws, in eval mode and without `no_grad`.
"""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if sys.argv[1:] == ["seeded"]:
    torch.manual_seed(3)
    np.random.seed(3)
own = sys.argv[1:] == ["own"]
generator = torch.Generator().manual_seed(3) if own else None
x, y = torch.randn(40_000, 8, generator=generator), torch.randn(40_000, 1, generator=generator)
if sys.argv[1:] == ["read"]:
    x, y = next(iter(DataLoader(TensorDataset(x, y), batch_size=len(x))))
model = nn.Sequential(nn.Linear(8, 1), nn.Dropout(0.1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(x[:32], y[:32]), batch_size=32)
for _ in range(10_000 if sys.argv[1:] == ["slices"] else 100):
    order = (np.random.default_rng(3) if own else np.random).permutation(len(x))
    if sys.argv[1:] == ["slices"]:
        (x, y), order = next(iter(loader)), np.arange(32)
    for rows in np.split(order, len(order) // 8):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
        if sys.argv[1:] == ["evaluates"]:
            model.eval()
            nn.functional.mse_loss(model(x[np.random.permutation(len(x))[:8]]), y[:8])
            model.train()
