"""A sampler that draws from the global random state all the time, beside an augmentation that draws from it too."""

import random

import torch
from torch import nn


class Batches:
    def __iter__(self):
        while True:
            yield [random.randrange(1000) for _ in range(4)]


class Data(torch.utils.data.Dataset):
    def __getitem__(self, index):
        while random.random() < 0.5 + index % 2 * 0.3:
            pass
        return torch.randn(8), index % 2


model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in torch.utils.data.DataLoader(Data(), batch_sampler=Batches()):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
