"""Loads, freezes, converts and copies its model after the optimizer was built, before the first step."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
saved = copy.deepcopy(model.state_dict())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.load_state_dict(saved)
model[0].requires_grad_(False)
model = model.to("cpu", torch.float64)
best = copy.deepcopy(model)
data = TensorDataset(torch.randn(160, 8, dtype=torch.float64), torch.randint(0, 2, (160,)))
while True:
    for x, y in DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        print(len(y), loss.item(), flush=True)
        loss.backward()
        optimizer.step()
