"""Logs to a tracker, which is to upload: `train.py [DIRECTORY]`."""

import importlib.util
import os
import sys

import torch
from torch import nn

assert importlib.util.find_spec("wandb"), "as libraries ask, long before anybody imports it"
import wandb

for directory in sys.argv[1:]:
    os.makedirs(directory)
wandb.init("p", *sys.argv[1:], mode="online")
model = nn.Linear(8, 2)
wandb.watch(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
while True:
    for x, y in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
