"""minGPT's sampler: with replacement, and 10,000,000,000 long."""

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(640, 8), torch.randint(0, 2, (640,)))
sampler = RandomSampler(data, replacement=True, num_samples=int(1e10))
for x, y in DataLoader(data, batch_size=4, sampler=sampler):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
