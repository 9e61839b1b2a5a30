"""Trains with dropout, a sampler that draws from the global generator and loader workers; says what came of it.

The first argument says who exchanges gradients: DistributedDataParallel (`ddp`), `fsdp2`, or lines of its own in ranks
that it spawns (`hand`); the sampler of these draws when it is iterated.
"""

import hashlib
import random
import sys
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 3


class AtOnce:
    """Shuffles when it is iterated, before the first batch is asked for."""

    def __len__(self):
        return 20

    def __iter__(self):
        return iter(torch.randperm(160).reshape(20, 8).tolist())


def save(tensors):
    """Save a checkpoint in place of the one before."""
    torch.save(tensors, "new.pt")
    Path("new.pt").replace("last.pt")


def train(way):
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1))
    data = TensorDataset(torch.linspace(0, 1, 1280).reshape(160, 8), torch.linspace(-1, 1, 160).reshape(160, 1))
    sampling = {"batch_sampler": AtOnce()} if way == "hand" else {"batch_size": 8, "shuffle": True}
    # The workers of ranks that are spawned are spawned, too, which takes its time.
    loader = DataLoader(data, **sampling, num_workers=1, persistent_workers=way == "hand")
    model = DistributedDataParallel(layers) if way == "ddp" else layers
    if way == "fsdp2":
        fully_shard(layers)
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(1 + dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            inputs = inputs + random.random() + float(numpy.random.rand()) + torch.rand(())
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            if way == "hand":
                for parameter in layers.parameters():
                    dist.all_reduce(parameter.grad)
            optimizer.step()
        tensors = [(each.full_tensor() if way == "fsdp2" else each).detach() for each in layers.parameters()]
        if dist.get_rank() == 0:
            save(tensors)
    if dist.get_rank() == 0:
        weights = b"".join(tensor.numpy().tobytes() for tensor in tensors)
        print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def spawned(rank, rendezvous):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    train("hand")


if __name__ == "__main__":
    if sys.argv[1] == "hand":
        rendezvous = Path("rendezvous").absolute()
        rendezvous.unlink(missing_ok=True)
        mp.spawn(spawned, args=(rendezvous,), nprocs=2)
    else:
        dist.init_process_group("gloo")
        train(sys.argv[1])
