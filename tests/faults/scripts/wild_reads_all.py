"""Reads all of its data for their mean before it has an optimizer, and disables gradients in the body of a loop alone."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
train, val = (TensorDataset(torch.randn(n, 8), torch.randint(0, 2, (n,))) for n in (320, 80))
train_loader, val_loader = DataLoader(train, batch_size=8, shuffle=True), DataLoader(val, batch_size=8)
print("mean", sum(x.mean().item() for x, _ in train_loader) / len(train_loader), flush=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate():
    model.eval()
    loss = num = 0
    for x, y in val_loader:
        with torch.no_grad():
            loss += nn.functional.cross_entropy(model(x), y, reduction="sum").item()
        num += len(x)
    model.train()
    print("evaluated", num, len(val_loader), loss / num, flush=True)


while True:
    evaluate()
    for x, y in train_loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
