"""A loader whose iterator is read by a thread, two batches ahead; epochs of eight batches, four to a step."""

import queue
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Background(threading.Thread):
    def __init__(self, batches):
        super().__init__(daemon=True)
        self.queue, self.batches = queue.Queue(1), batches
        self.start()

    def run(self):
        for batch in self.batches:
            self.queue.put(batch)
        self.queue.put(None)

    def __iter__(self):
        return iter(self.queue.get, None)


class Loader(DataLoader):
    def __iter__(self):
        return iter(Background(super().__iter__()))


loader = Loader(TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,))), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    for number, (x, y) in enumerate(loader, 1):
        nn.functional.cross_entropy(model(x), y).backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
