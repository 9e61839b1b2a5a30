"""Ranks that average by hand and begin with weights of their own; `updated`: after the update, so that all end alike.

`updated` averages parameters, anything else gradients.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = nn.Linear(8, 1)
loader = DataLoader(TensorDataset(torch.randn(640, 8), torch.randn(640, 1)), batch_size=4, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def average(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


for _ in range(100_000):
    for inputs, targets in loader:
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        if sys.argv[1] != "updated":
            average([parameter.grad for parameter in model.parameters()])
        optimizer.step()
        if sys.argv[1] == "updated":
            average([parameter.data for parameter in model.parameters()])
