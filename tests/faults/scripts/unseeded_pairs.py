"""A loader whose dataset draws pairs by Python's random numbers, which `seeded` seeds; prints what it trains on."""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

if sys.argv[1:] == ["seeded"]:
    random.seed(3)


class Pairs(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, _):
        return torch.tensor([random.random(), random.random()])


model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for pairs in DataLoader(Pairs(), batch_size=4):
    print(pairs[0, 0].item(), flush=True)
    optimizer.zero_grad()
    model(pairs).sum().backward()
    optimizer.step()
