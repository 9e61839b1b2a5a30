"""Updates each parameter in the backward pass, as soon as its gradient is there, by an optimizer of its own."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
data = TensorDataset(torch.randn(320, 8), torch.randint(0, 2, (320,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizers = {parameter: torch.optim.Adam([parameter]) for parameter in model.parameters()}


def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(update)
while "same" in sys.argv:
    nn.functional.cross_entropy(model(torch.randn(8, 8)), torch.randint(0, 2, (8,))).backward()
while True:
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        nn.functional.cross_entropy(model(x), y).backward()
