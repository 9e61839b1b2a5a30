"""Rank 1 fails where the ranks are started first. They are again, by torchrun or else by this file.

The second ones take so many steps, if that is said; with 0 there are none.
"""

import gc
import os
import sys

gc.disable()
import torch._dynamo  # which every optimizer imports: once for all ranks that are forked
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

gc.freeze()  # what was imported is not looked through when a rank ends
gc.enable()

steps = int(sys.argv[1]) if sys.argv[1:] else 100_000


def train(is_first):
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10 if is_first else steps):
        if is_first and dist.get_rank() == 1 and step == 3:
            raise ValueError("planted")
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


def forked(rank, rendezvous, is_first):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    train(is_first)


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        train(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
    else:
        try:
            mp.start_processes(forked, args=(f"{os.getcwd()}/first", True), nprocs=2, start_method="fork")
        except mp.ProcessRaisedException:
            if not steps:
                raise
        mp.start_processes(forked, args=(f"{os.getcwd()}/second", False), nprocs=2, start_method="fork")
