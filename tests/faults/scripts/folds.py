"""Cross validation that never ends: each fold trains a model with an optimizer of its own, for so many steps.

Models are fresh ones or, with `ahead`, five that were all built before and are trained in turn.
"""

import sys
from itertools import count

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps = int(sys.argv[1])
torch.manual_seed(5)


def built() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    return model, torch.optim.Adam(model.parameters())


ahead = [built() for _ in range(5)] if "ahead" in sys.argv else []
for number in count():
    fold = TensorDataset(torch.randn(8 * 2 * steps, 8), torch.randint(0, 2, (8 * 2 * steps,)))
    model, optimizer = ahead[number % 5] if ahead else built()
    for taken, (x, y) in enumerate(DataLoader(fold, batch_size=8, shuffle=True)):
        if taken == steps:
            break
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
