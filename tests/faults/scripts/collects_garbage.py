"""Rank 1, or the only one, collects garbage in every step, among a hundred thousand lists."""

import gc

import torch
from torch import nn
from torch.distributed import distributed_c10d
from torch.utils.data import DataLoader, TensorDataset

try:
    rank = distributed_c10d.get_rank()  # torch.distributed answers scripts as if they ran alone
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
