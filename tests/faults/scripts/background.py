"""Fetches batches in a thread of its own, trains a temperature outside of any module, builds a loader per epoch."""

import queue
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(160, 8), torch.randint(0, 2, (160,)))
model = nn.Linear(8, 2)
temperature = nn.Parameter(torch.ones(()))
optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
batches = queue.Queue(maxsize=2)


def fetch():
    while True:
        for batch in DataLoader(data, batch_size=4):
            batches.put(batch)


threading.Thread(target=fetch, daemon=True).start()
while True:
    x, y = batches.get()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x) / temperature, y).backward()
    optimizer.step()
