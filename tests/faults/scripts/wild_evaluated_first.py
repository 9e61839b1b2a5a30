"""Evaluates once before it trains, and asks how many batches there are while gradients are still on."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
train, val = (TensorDataset(torch.randn(n, 8), torch.randint(0, 2, (n,))) for n in (320, 80))
val_loader = DataLoader(val, batch_size=8)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate(loader):
    model.eval()
    losses = torch.zeros(len(loader))
    with torch.no_grad():
        for i, (x, y) in enumerate(loader):
            losses[i] = nn.functional.cross_entropy(model(x), y)
    model.train()
    return losses.mean()


while True:
    evaluate(val_loader)
    for x, y in DataLoader(train, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
