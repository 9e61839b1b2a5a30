"""Rank 1, or the only one, collects garbage in every step, among a hundred thousand lists."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    rank = dist.get_rank()
except (RuntimeError, ValueError):
    rank = 1
gc.freeze()
held = [[i] for i in range(100_000)]
gc.disable()
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(400, 8), torch.randn(400, 1))
while True:
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if rank == 1:
            gc.collect()
        loss.backward()
        optimizer.step()
