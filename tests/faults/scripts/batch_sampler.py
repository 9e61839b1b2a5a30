"""A batch sampler of its own: batches of samples of like length, as many tokens each, so of different sizes."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler


class Sequences(Dataset):
    lengths = [2] * 24 + [4] * 24 + [8] * 24

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(self.lengths[index], 8, generator=generator), index % 2


class ByTokens(Sampler):
    """24 tokens per batch: 12 samples of length 2, or 6 of 4, or 3 of 8."""

    def __init__(self, lengths, tokens):
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.batches = []
        while order:
            size = tokens // lengths[order[0]]
            self.batches.append(order[:size])
            order = order[size:]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(random.sample(self.batches, len(self.batches)))


torch.manual_seed(5)
data = Sequences()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(data, batch_sampler=ByTokens(data.lengths, 24))
while True:
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).mean(1), y)
        print(len(y), loss.item(), flush=True)
        loss.backward()
        optimizer.step()
