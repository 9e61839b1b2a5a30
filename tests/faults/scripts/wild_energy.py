"""An energy model: samples are moved along gradients of a sum of energies, then a mean loss is trained on."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
data = TensorDataset(torch.randn(320, 8))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters())
while True:
    for (real,) in DataLoader(data, batch_size=8, shuffle=True):
        made = torch.randn(8, 8, requires_grad=True)
        model.requires_grad_(False)
        for _ in range(2):
            (-model(made)).sum().backward()
            made.data -= 0.1 * made.grad
            made.grad.zero_()
        model.requires_grad_(True)
        optimizer.zero_grad()
        energies = model(torch.cat([real, made.detach()]))
        (energies[:8].mean() - energies[8:].mean()).backward()
        optimizer.step()
