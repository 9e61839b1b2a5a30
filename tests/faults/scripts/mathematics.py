"""Prints the size of every batch and its loss: mean or sum reduction, no dropout, no BatchNorm."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
data = TensorDataset(torch.randn(160, 8), torch.randn(160, 1))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
criterion = nn.MSELoss(reduction=sys.argv[1])
while True:
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        print(len(y), loss.item(), flush=True)
        loss.backward()
        optimizer.step()
