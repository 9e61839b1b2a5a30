"""Draws its batches by itself; the argument says with what.

`generator`: one of its own, and noise that nobody seeds, which with `noise` is what the loss is held to as well;
`order`: one of torch's for each epoch, which is seeded.
"""

import sys

import numpy as np
import torch
from torch import nn

torch.manual_seed(3)
data, targets = torch.randn(4000, 8), torch.randint(10, (4000,))
model = nn.Linear(8, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
generator = np.random.default_rng(3)


def batches():
    while True:
        for rows in torch.randperm(4000).split(32):
            if sys.argv[1] == "order":
                yield data[rows], targets[rows]
                continue
            rows = torch.from_numpy(generator.integers(4000, size=32))
            noise = torch.from_numpy(np.random.random((32, 8))).float()
            yield data[rows] + noise, noise.argmax(1) if sys.argv[1] == "noise" else targets[rows]


for x, y in batches():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
