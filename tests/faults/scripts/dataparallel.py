"""Wraps its model in nn.DataParallel itself, which without a GPU calls the plain module."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
data = TensorDataset(torch.randn(160, 8), torch.randn(160, 1))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
model = nn.DataParallel(model).to(device)
optimizer = torch.optim.SGD(model.module.parameters(), lr=0.01, momentum=0.9)
while True:
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        print(len(y), loss.item(), flush=True)
        loss.backward()
        optimizer.step()
