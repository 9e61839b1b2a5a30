"""An ordinary script: main(), argparse, parameter groups, accumulation, BatchNorm, a scheduler, validation."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler


class Points(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(size, 8, generator=generator)
        self.y = (self.x.sum(1) > 0).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def validate(model, loader):
    model.eval()
    seen = 0
    with torch.no_grad():
        for x, y in loader:
            model(x)
            seen += len(y)
    model.train()
    return seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--own-sampler", action="store_true")
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=10_000)
    args = parser.parse_args()

    torch.manual_seed(0)
    data = Points(80)
    sampler = SubsetRandomSampler(range(64)) if args.own_sampler else None
    train = DataLoader(data, batch_size=4, sampler=sampler, shuffle=sampler is None, num_workers=args.num_workers)
    test = DataLoader(Points(12), batch_size=4)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    groups = [
        {"params": model[0].parameters(), "lr": 0.01},
        {"params": [*model[1].parameters(), *model[3].parameters()]},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.001)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [0.01, 0.001], total_steps=len(train) * args.epochs // args.accumulate
    )
    samples = 0
    for epoch in range(args.epochs):
        for i, (x, y) in enumerate(train):
            loss = nn.functional.cross_entropy(model(x), y) / args.accumulate
            loss.backward()
            samples += len(y)
            if (i + 1) % args.accumulate == 0:
                print(samples, "samples, loss", loss.item(), flush=True)
                samples = 0
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        print("epoch", epoch, "validated", validate(model, test))


if __name__ == "__main__":
    main()
