"""Cross validation that never ends: each fold trains a fresh model with an optimizer of its own, for so many steps."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps = int(sys.argv[1])
torch.manual_seed(5)
while True:
    fold = TensorDataset(torch.randn(8 * 2 * steps, 8), torch.randint(0, 2, (8 * 2 * steps,)))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for taken, (x, y) in enumerate(DataLoader(fold, batch_size=8, shuffle=True)):
        if taken == steps:
            break
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
