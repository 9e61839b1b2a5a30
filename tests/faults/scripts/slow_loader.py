"""Each batch takes the loader so many seconds, each step of the model 60 ms: both asleep, so that little else counts."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEP_S = 0.06


class Sleeping(Dataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((4,), float(index))


parser = argparse.ArgumentParser()
parser.add_argument("--batch-s", type=float, default=0.0)
parser.add_argument("--num-workers", type=int, default=0)
args = parser.parse_args()

torch.set_num_threads(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for _ in range(1000):
    # One sample is a batch: a sleep for each of several would add up what the timer of the machine is late.
    for x in DataLoader(Sleeping(args.batch_s), num_workers=args.num_workers, shuffle=True):
        optimizer.zero_grad()
        time.sleep(STEP_S)
        model(x).mean().backward()
        optimizer.step()
