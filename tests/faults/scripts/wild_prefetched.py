"""Loaders whose batches a thread fetches ahead, as prefetch_generator's does; one of them is for a validation."""

import queue
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class BackgroundGenerator(threading.Thread):
    def __init__(self, generator):
        super().__init__(daemon=True)
        self.queue = queue.Queue(maxsize=1)
        self.generator = generator
        self.start()

    def run(self):
        for item in self.generator:
            self.queue.put(item)
        self.queue.put(None)

    def __iter__(self):
        return self

    def __next__(self):
        item = self.queue.get()
        if item is None:
            raise StopIteration
        return item


class DataLoaderX(DataLoader):
    def __iter__(self):
        return BackgroundGenerator(super().__iter__())


torch.manual_seed(5)
train, val = (TensorDataset(torch.randn(n, 8), torch.randint(0, 2, (n,))) for n in (64, 256))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    for x, y in DataLoaderX(train, batch_size=8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        for x, y in DataLoaderX(val, batch_size=8):
            model(x)
