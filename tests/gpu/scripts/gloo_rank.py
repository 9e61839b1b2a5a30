"""One of two ranks that train on the same GPU over gloo: `gloo_rank.py RENDEZVOUS RANK`; prints its gradient."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(sys.argv[2])
torch.cuda.set_device(0)
dist.init_process_group(
    "gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
)
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(3, 1, bias=False, device="cuda"))
model(torch.full((2, 3), rank + 1.0, device="cuda")).mean().backward()
print(*model.module.weight.grad.flatten().tolist())
dist.destroy_process_group()
