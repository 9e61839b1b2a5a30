"""Trains on one batch per rank, again and again, and prints every loss: any change of the training shows in it."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--ragged", action="store_true", help="every third step has one micro-batch less")
args = parser.parse_args()

torch.manual_seed(0)
batch = 8
data = TensorDataset(torch.randn(2 * batch, 12), torch.randint(0, 3, (2 * batch,)))
model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
if args.optimizer == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
else:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 1.0)


def batches():
    while True:
        yield from DataLoader(data, batch_size=batch)


feed = batches()
for step in range(100_000):
    optimizer.zero_grad()
    micro_batches = args.accumulate - (args.ragged and step % 3 == 0)
    for _ in range(micro_batches):
        x, y = next(feed)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
    optimizer.step()
    scheduler.step()
    model.eval()
    with torch.no_grad():
        evaluated = nn.functional.cross_entropy(model(x), y)
    model.train()
    print(f"loss {loss.item():.9g} evaluated {evaluated.item():.9g}", flush=True)
