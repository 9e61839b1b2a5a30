"""One rank leaves early, and the other trains on without it; what the ranks exchange ends before that."""

import sys

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[1 + dist.get_rank()])):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"rank {dist.get_rank()} ends by itself", flush=True)
