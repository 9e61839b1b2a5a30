"""A loader whose dataset draws pairs by Python's random numbers, which `seeded` seeds; prints what it trains on.

With `picked` half of each pair is drawn by numpy, which the script seeds; with `shuffled` it only draws by that before.
`drawn` seeds them by one of them, and with `forked` a process that it forks draws them.
"""

import multiprocessing
import random
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

if sys.argv[1:] == ["seeded"]:
    random.seed(3)
if sys.argv[1:] == ["drawn"]:
    random.seed(random.randint(1, 10_000))
if sys.argv[1:] in (["picked"], ["shuffled"]):
    np.random.seed(3)
    np.random.permutation(100)


def drawn():
    return [random.random(), random.random()]


class Pairs(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, _):
        if pool is not None:
            return torch.tensor(pool.apply(drawn))
        first = np.random.random() if sys.argv[1:] == ["picked"] else random.random()
        return torch.tensor([first, random.random()])


pool = multiprocessing.get_context("fork").Pool(1) if sys.argv[1:] == ["forked"] else None
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for pairs in DataLoader(Pairs(), batch_size=4):
    print(pairs[0, 0].item(), flush=True)
    optimizer.zero_grad()
    model(pairs).sum().backward()
    optimizer.step()
