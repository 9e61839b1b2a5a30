"""Calls its model at first, and goes on with the model's forward, which no wrapper sees."""

import itertools

import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(640, 8), torch.randint(0, 2, (640,)))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
for step, (x, y) in enumerate(itertools.chain.from_iterable(itertools.repeat(loader))):
    optimizer.zero_grad()
    answer = model(x) if step < 8 else model.forward(x)
    nn.functional.cross_entropy(answer, y).backward()
    optimizer.step()
