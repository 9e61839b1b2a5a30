"""Compiles its model: by `torch.compile(model)` or by `model.compile()`, as one graph."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
data = TensorDataset(torch.randn(160, 8), torch.randn(160, 1))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
if sys.argv[1] == "function":
    model = torch.compile(model, backend="aot_eager", fullgraph=True)
else:
    model.compile(backend="eager", fullgraph=True)  # without what else aot_eager imports
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        print(len(y), loss.item(), flush=True)
        loss.backward()
        optimizer.step()
