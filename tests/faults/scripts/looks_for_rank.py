"""Distributes itself when it finds a launcher's variables, as nanoGPT and torchvision's references do."""

import os

import torch
import torch.distributed as dist
from torch import nn

if "RANK" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ:
    dist.init_process_group("gloo")
model = nn.Linear(8, 2)
if dist.is_initialized():
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(640, 8), torch.randint(0, 2, (640,)))
while True:
    for x, y in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
