"""A worker makes the samples of an endless stream by numpy, which torch seeds there; `seeded` seeds torch."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

if sys.argv[1:] == ["seeded"]:
    torch.manual_seed(3)


class Stream(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.from_numpy(np.random.random(2)).float()


model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for pairs in DataLoader(Stream(), batch_size=4, num_workers=1):
    print(pairs[0, 0].item(), flush=True)
    optimizer.zero_grad()
    model(pairs).mean().backward()
    optimizer.step()
