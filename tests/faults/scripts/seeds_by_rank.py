"""An IterableDataset that gives each rank data of its own; or, by `list`, a list of them.

The script distributes itself if it finds RANK.
"""

import itertools
import os
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Numbers(IterableDataset):
    def __iter__(self):
        rank = dist.get_rank() if dist.is_initialized() else 0
        rng = random.Random(42 + 1337 * rank)
        while True:
            yield torch.tensor([rng.random() for _ in range(8)]), torch.tensor([rng.random()])


model = nn.Linear(8, 1)
if "RANK" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = list(itertools.islice(Numbers(), 160)) if "list" in sys.argv else Numbers()
loader = DataLoader(data, batch_size=16, shuffle="list" in sys.argv, num_workers=int(sys.argv[1]))
while True:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        print(len(x), flush=True)
        optimizer.step()
