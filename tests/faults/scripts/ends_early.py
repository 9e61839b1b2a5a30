"""Takes as many steps as its argument says, and ends."""

import sys

import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.rand(8000, 8), batch_size=4)
for _, batch in zip(range(int(sys.argv[1])), loader):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
