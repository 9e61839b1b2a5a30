"""Takes as many batches of an iterator as the length of its data says."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(320, 8))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = iter(loader)
for _ in range(len(data) // 8):
    (x,) = next(batches)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
