"""Trains in ways that some ablations cannot take; prints every step."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--how", choices=["in_place", "no_loader", "scheduled", "plain"], default="plain")
parser.add_argument("--num-workers", type=int, default=0)
args = parser.parse_args()

EPOCHS = 8
data = TensorDataset(torch.ones(64, 4))
loader = DataLoader(data, batch_size=4, num_workers=args.num_workers)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
total_steps = EPOCHS * len(loader)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=total_steps)


def batches():
    if args.how == "no_loader":
        while True:
            yield torch.ones(4, 4)
    for _ in range(EPOCHS if args.how == "scheduled" else 10_000):
        for (x,) in loader:
            yield x


done = 0
for x in batches():
    if args.how == "in_place":
        x.mul_(0.5)
        assert x.max() == 0.5, "nobody changed this batch before"
    optimizer.zero_grad()
    with torch.autocast("cpu", enabled=args.how == "no_loader"):
        loss = model(x).float().mean()
    loss.backward()
    optimizer.step()
    if args.how == "scheduled":
        scheduler.step()
    done += 1
    print(f"step {done} of {total_steps}", flush=True)
