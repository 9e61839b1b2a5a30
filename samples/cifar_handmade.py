"""Train on CIFAR-like images with data parallelism written by hand: its own processes, its own all_reduce.

python samples/cifar_handmade.py                # an all_reduce for each parameter, after the backward pass
python samples/cifar_handmade.py --coalesced    # one, of all gradients in one tensor
python samples/cifar_handmade.py --overlap      # two, each begun as soon as its gradients are there
"""

import argparse
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def images(size):
    """Return images of 3 x 32 x 32 with one of ten labels each, drawn alike in every process."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (size,), generator=generator)
    return TensorDataset(torch.randn(size, 3, 32, 32, generator=generator) + labels.view(-1, 1, 1, 1) / 10, labels)


def network():
    """Return a small convolutional network."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * 8 * 8, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


def average(model, world_size):
    """Average the gradients over all ranks, one parameter after the other."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size


def flatten(parameters):
    """Return the gradients of these parameters in one tensor."""
    return torch.cat([parameter.grad.flatten() for parameter in parameters])


def unflatten(flat, parameters):
    """Give these parameters their gradients from one tensor."""
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))


def average_coalesced(model, world_size):
    """Average the gradients over all ranks, all of them at once."""
    parameters = list(model.parameters())
    flat = flatten(parameters)
    dist.all_reduce(flat)
    unflatten(flat / world_size, parameters)


class Bucket:
    """Gradients that are averaged together, as soon as the last of them is there."""

    def __init__(self, *modules):
        self.parameters = [parameter for module in modules for parameter in module.parameters()]
        self.missing = len(self.parameters)
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.begin)

    def begin(self, _parameter):
        """Begin to add up the gradients if all are there."""
        self.missing -= 1
        if not self.missing:
            self.flat = flatten(self.parameters)
            self.work = dist.all_reduce(self.flat, async_op=True)

    def wait(self, world_size):
        """Wait for the gradients, and average them."""
        self.work.wait()
        unflatten(self.flat / world_size, self.parameters)
        self.missing = len(self.parameters)


class Overlapped:
    """Averages the gradients in two buckets, the first of them while the backward pass goes on."""

    def __init__(self, model):
        *convolutions, hidden, activation, output = model
        self.buckets = Bucket(hidden, activation, output), Bucket(*convolutions)

    def __call__(self, _model, world_size):
        """Wait for all of them."""
        for bucket in self.buckets:
            bucket.wait(world_size)


def train(rank, world_size, port, options):
    """Train as one of `world_size` ranks."""
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = images(options.samples)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=options.batch_size, sampler=sampler)
    model = network()
    synchronise = Overlapped(model) if options.overlap else average_coalesced if options.coalesced else average
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()
            synchronise(model, world_size)
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


def free_port():
    """Return a port at which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("localhost", 0))
        return sock.getsockname()[1]


def main():
    """Start the ranks, and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--batch-size", type=int, default=64)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--coalesced", action="store_true")
    how.add_argument("--overlap", action="store_true")
    options = parser.parse_args()
    mp.spawn(train, args=(options.ranks, free_port(), options), nprocs=options.ranks)


if __name__ == "__main__":
    main()
