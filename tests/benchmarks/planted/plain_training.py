"""Train samples/mnist_lenet.py on every rank in a plain loop and print the seconds that a fetch takes.

Started by torch's own launcher; nothing of dpdoctor is in it.
"""

from __future__ import annotations

import time
from statistics import mean

import mnist_lenet
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

WARMUP, TIMED = 10, 80


def main() -> None:
    args = mnist_lenet.parse_args()
    distributed.init_process_group("gloo")
    images = mnist_lenet.make_train_set(args)
    loader = DataLoader(images, batch_size=args.batch_size, sampler=DistributedSampler(images), num_workers=0)
    model = DistributedDataParallel(mnist_lenet.LeNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    took = []
    batches = iter(loader)
    for _ in range(WARMUP + TIMED):
        begin = time.perf_counter()
        inputs, labels = next(batches)
        took.append(time.perf_counter() - begin)
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        loss.item()
    fetch = torch.tensor(mean(took[WARMUP:]))
    distributed.all_reduce(fetch)
    if distributed.get_rank() == 0:
        print(fetch.item() / distributed.get_world_size())
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
