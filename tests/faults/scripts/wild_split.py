"""One data set of which only one part may be read: a sampler gives the indices of that part, or keys."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler


class Second(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        assert int(index) >= 200
        return torch.full((8,), int(index) / 400), int(index) % 2


indices = range(200, 400)
sampler = SubsetRandomSampler(indices) if sys.argv[1] == "indices" else [str(index) for index in indices]
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Second(), batch_size=4, sampler=sampler)
while True:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
