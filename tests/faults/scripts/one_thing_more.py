"""Every step does the same and, when told so, one thing more."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

more = sys.argv[1]
if more == "half the bucket":
    dist._DEFAULT_FIRST_BUCKET_BYTES //= 2
dtype = torch.float64 if more == "float64 batch" else torch.float32


class Points(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        if more == "random transform":
            for _ in range(int(torch.randint(50, ()))):
                x = x + 0
        return x, y


data = Points(torch.randn(640, 256, dtype=dtype), torch.randn(640, 1, dtype=dtype))
loader = DataLoader(data, batch_size=16 if more == "doubled batch" else 8, shuffle=True)
layers = [layer for _ in range(3) for layer in (nn.Linear(256, 256), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(256, 1)).to(dtype)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
while True:
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if more == "all_reduce":
            dist.all_reduce(loss.detach())
        if more == "item":
            print(loss.item())
        if more == "memory":
            held = torch.ones(40_000_000)
