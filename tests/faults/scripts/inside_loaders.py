"""Trains with one kind of loader; prints a checksum of every batch and what its slow transform took, on average."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

KIND, WORKERS = sys.argv[1], int(sys.argv[2])
SIZE, BATCH = 48, 4
PLANTED_S = 0.020


def busy(seconds):
    begin = time.thread_time()
    while time.thread_time() - begin < seconds:
        pass


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, item):
        for transform in self.transforms:
            item = transform(item)
        return item


class Double:
    def __call__(self, item):
        return item * 2


class Slow:
    seconds, calls = 0.0, 0

    def __call__(self, item):
        begin = time.perf_counter()
        time.sleep(0.003)
        Slow.seconds += time.perf_counter() - begin
        Slow.calls += 1
        return item + 1


class Rows(Dataset):
    def __init__(self, delay=None, transform=None):
        self.delay, self.transform = delay, transform

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        if KIND == "raises" and index == 17:
            raise LookupError("row 17 is missing")
        if self.delay is not None:
            self.delay(PLANTED_S)
        item = torch.full((8,), float(index)) + torch.rand(8)
        return item if self.transform is None else self.transform(item)


def slow_collate(items):
    time.sleep(PLANTED_S)
    return torch.stack(items)


def make_loader():
    options = {"batch_size": BATCH, "num_workers": WORKERS, "generator": torch.Generator().manual_seed(1)}
    if KIND == "sleep":
        return DataLoader(Rows(delay=time.sleep), **options)
    if KIND == "busy":
        return DataLoader(Rows(delay=busy), **options)
    if KIND == "collate":
        return DataLoader(Rows(), collate_fn=slow_collate, **options)
    if KIND == "compose":
        return DataLoader(Rows(transform=Compose([Double(), Slow(), torch.neg])), **options)
    if KIND == "persistent":
        return DataLoader(Rows(), shuffle=True, persistent_workers=True, **options)
    return DataLoader(Rows(), shuffle=True, **options)


def main():
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = make_loader()
    other = DataLoader(Rows(), batch_size=3)
    for epoch in range(4):
        for number, batch in enumerate(loader):
            if KIND == "persistent" and epoch == 1 and number == 5:
                break
            print(f"batch {batch.double().sum().item():.9f}", flush=True)
            if KIND == "ready":
                time.sleep(PLANTED_S)
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
            if Slow.calls:
                print(f"slow {Slow.seconds / Slow.calls}", flush=True)
        with torch.no_grad():
            for batch in other:
                model(batch)


if __name__ == "__main__":
    main()
