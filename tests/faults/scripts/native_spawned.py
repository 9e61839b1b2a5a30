"""Spawns ranks that exchange gradients by hand, and all of which train on the same samples; rank 0 saves, others load."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(rank, world_size, rendezvous):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    if rank == 0:
        torch.save(model.state_dict(), "start.pt")
    dist.barrier()
    model.load_state_dict(torch.load("start.pt"))
    loader = DataLoader(TensorDataset(torch.randn(640, 8), torch.randn(640, 1)), batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100_000):
        for inputs, targets in loader:
            loss = (model(inputs) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size
            optimizer.step()


if __name__ == "__main__":
    world_size = int(sys.argv[1])
    Path("start.pt").write_text("what was here before")
    rendezvous = Path("rendezvous").absolute()
    if "as_processes" in sys.argv:
        context = mp.get_context("spawn" if "anew" in sys.argv else "fork")
        processes = [context.Process(target=train, args=(rank, world_size, rendezvous)) for rank in range(world_size)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    else:
        mp.spawn(train, args=(world_size, rendezvous), nprocs=world_size)
    print("the parent ends", flush=True)
