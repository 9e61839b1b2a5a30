"""Adversarial training: an attack with an optimizer of its own for each batch, before the model's optimizer steps."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
data = TensorDataset(torch.randn(320, 8), torch.randint(0, 2, (320,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
outer = torch.optim.Adam(model.parameters())
while True:
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        delta = torch.zeros_like(x, requires_grad=True)
        inner = torch.optim.SGD([delta], lr=0.1)
        for _ in range(int(sys.argv[1])):
            inner.zero_grad()
            (-nn.functional.cross_entropy(model(x + delta), y)).backward()
            inner.step()
        outer.zero_grad()
        nn.functional.cross_entropy(model(x + delta.detach()), y).backward()
        outer.step()
