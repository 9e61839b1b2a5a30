"""Trains linear layers on one GPU in a way that is slow for one reason, or for none."""

import argparse

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

# Rows, features, batch, width, hidden layers.
SIZES = {
    "plain": (20_000, 256, 512, 4096, 6),
    "host_sync": (20_000, 256, 512, 4096, 6),
    "launch_bound": (20_000, 256, 16, 64, 40),
    "h2d_exposed": (2_000, 150_528, 256, 512, 4),
    "memory_pressure": (20_000, 256, 256, 2048, 4),
}
parser = argparse.ArgumentParser()
parser.add_argument("why", choices=SIZES)
why = parser.parse_args().why
rows, features, batch, width, depth = SIZES[why]

torch.manual_seed(0)
data = TensorDataset(torch.randn(rows, features), torch.randint(0, 10, (rows,)))
loader = DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), batch, drop_last=True))
hidden = (part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU()))
model = nn.Sequential(nn.Linear(features, width), nn.ReLU(), *hidden, nn.Linear(width, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
if why == "memory_pressure":
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(int(0.95 * free), dtype=torch.uint8, device="cuda")
largest = 0.0
while True:
    for x, y in loader:
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if why == "host_sync":
            largest = max(parameter.grad.abs().max().item() for parameter in model.parameters())
        optimizer.step()
