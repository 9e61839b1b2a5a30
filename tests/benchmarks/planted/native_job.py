"""Train in one of three ways that torchrun starts, with a fault planted or none: `native_job.py ddp slow_rank 20`.

ways: ddp (DistributedDataParallel), fsdp2 (fully_shard), by_hand (one all_reduce of all gradients after each backward
pass). faults, with what their size counts: none; slow_items, ms for each batch; slow_rank, ms of rank 1 in each step;
gc_churn, objects that each step collects by hand; too_many_threads, threads of each rank; small_layers, layers whose
gradients are exchanged one by one; extra_all_reduce, MB in each step.
"""

import argparse
import gc
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WAYS = ("ddp", "fsdp2", "by_hand")
FAULTS = ("none", "slow_items", "slow_rank", "gc_churn", "too_many_threads", "small_layers", "extra_all_reduce")
BATCH_SIZE = 16


class Images(Dataset):
    """Images with a label each; the first of a batch takes `slow_s` to read."""

    def __init__(self, slow_s):
        self.slow_s = slow_s
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(10, (4096,), generator=generator)
        self.images = torch.randn(512, 3, 32, 32, generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        time.sleep(self.slow_s / BATCH_SIZE)
        return self.images[index % len(self.images)], self.labels[index]


class SlowRank(nn.Module):
    """Hands on what it gets; rank 1 takes its time."""

    def __init__(self, slow_s):
        super().__init__()
        self.slow_s = slow_s

    def forward(self, x):
        if dist.get_rank() == 1:
            time.sleep(self.slow_s)
        return x


def network(channels, *, small_layers, slow_s):
    """Return a convolutional network that computes much and has few parameters, with so many small layers behind."""
    return nn.Sequential(
        *(nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(channels, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), SlowRank(slow_s)),
        *(nn.Linear(64, 64) for _ in range(small_layers)),
        nn.Linear(64, 10),
    )


def distribute(model, way, *, one_by_one):
    """Return the model as its way wants it, and what averages its gradients."""
    if way == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=0.01 if one_by_one else 25), lambda: None
    if way == "fsdp2":
        for layer in model if one_by_one else ():
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        return fully_shard(model), lambda: None

    def average():
        gradients = [parameter.grad for parameter in model.parameters()]
        if one_by_one:
            for gradient in gradients:
                dist.all_reduce(gradient)
                gradient.div_(dist.get_world_size())
            return
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    return model, average


def cycles(number):
    """Return so many lists that hold themselves."""
    rings = [[] for _ in range(number)]
    for ring in rings:
        ring.append(ring)
    return rings


def main():
    """Train as one rank, until somebody ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("size", type=float, nargs="?", default=0.0)
    parser.add_argument("--channels", type=int, default=32)
    options = parser.parse_args()
    size = dict.fromkeys(FAULTS, 0.0) | {options.fault: options.size}
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(int(size["too_many_threads"]) or 1)
    data = Images(size["slow_items"] / 1000)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH_SIZE, sampler=sampler, drop_last=True)
    small_layers = int(size["small_layers"])
    plain = network(options.channels, small_layers=small_layers, slow_s=size["slow_rank"] / 1000)
    model, average = distribute(plain, options.way, one_by_one=small_layers > 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    extra = torch.zeros(int(size["extra_all_reduce"] * 250_000))
    for epoch in range(1000):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            average()
            if len(extra):
                dist.all_reduce(extra)
            optimizer.step()
            if size["gc_churn"]:
                history = cycles(int(size["gc_churn"]))
                gc.collect()
                del history
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
