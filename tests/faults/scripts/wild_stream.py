"""A stream that all ranks read whole, with the time beside each sample; `ahead`: a thread fetches, by far ahead or not."""

import queue
import random
import sys
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        draws = torch.Generator().manual_seed(0)
        while True:
            x = torch.randn(8, generator=draws)
            yield x, x.sum(), time.time()


def fetch(batches):
    naps = random.SystemRandom()
    for batch in DataLoader(Stream(), batch_size=4):
        time.sleep(naps.uniform(0, 0.006))
        batches.put(batch)


def fetched_ahead():
    batches = queue.Queue(maxsize=8)
    threading.Thread(target=fetch, args=(batches,), daemon=True).start()
    while True:
        yield batches.get()


torch.manual_seed(5)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y, _ in fetched_ahead() if "ahead" in sys.argv else DataLoader(Stream(), batch_size=4):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x).squeeze(1), y).backward()
    optimizer.step()
