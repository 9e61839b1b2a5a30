"""Raises where it is given a sample twice in an epoch, as replayed batches are."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(4096, 4), torch.arange(4096))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100):
    seen = set()
    for x, numbers in DataLoader(data, batch_size=4):
        if not seen.isdisjoint(numbers.tolist()):
            raise ValueError("a sample came twice in an epoch")
        seen.update(numbers.tolist())
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
