"""A model whose class is called by a `__call__` of its own: `forward` goes on to forward, `whole` does all by itself."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Forward(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))

    def __call__(self, x):
        return self.forward(x)


class Whole(Forward):
    forward = nn.Module.forward

    def __call__(self, x):
        return self.b(torch.relu(self.a(x)))


torch.manual_seed(0)
model = {"forward": Forward, "whole": Whole}[sys.argv[1]]()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for x, y in DataLoader(TensorDataset(torch.randn(480, 8), torch.randn(480, 1)), batch_size=6):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        print(loss.item(), flush=True)
