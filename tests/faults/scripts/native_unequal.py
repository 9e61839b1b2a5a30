"""Rank 1 has one batch fewer than rank 0 in every epoch, and what follows it pairs with rank 0's last step.

The first argument says what that is: nothing (`exit`), a `barrier`, the next epoch's steps (`epochs`) or a `metric`.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

WAY = sys.argv[1]

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)
layers = nn.Linear(1024, 1, bias=False)
model = layers if WAY == "epochs" else DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
num_samples = 4 * (30 - rank)
loader = DataLoader(TensorDataset(torch.randn(num_samples, 1024), torch.randn(num_samples, 1)), batch_size=4)
for _ in range(3 if WAY in {"epochs", "metric"} else 1):
    for inputs, targets in loader:
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if WAY == "epochs":
            dist.all_reduce(layers.weight.grad)
        optimizer.step()
    if WAY == "metric":
        mean = loss.detach()
        dist.all_reduce(mean)
if WAY in {"barrier", "epochs"}:
    dist.barrier()
