"""Sleeps 10 ms in each step, in the places given in turn, and counts its own steps and samples."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PLACES = sys.argv[1:]
SLEEP_S = 0.010


def sleep_in(place):
    if place == PLACES[steps % len(PLACES)]:
        time.sleep(SLEEP_S)


class Points(Dataset):
    def __len__(self):
        return 44

    def __getitem__(self, index):
        if index % 4 == 0:
            sleep_in("dataset")
        return torch.full((8,), float(index)), index % 2


class Net(nn.Linear):
    def forward(self, x):
        sleep_in("forward")
        return super().forward(x)


class Slow(torch.optim.SGD):
    def step(self, closure=None):
        sleep_in("optimizer")
        return super().step(closure)


class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        sleep_in("backward")
        return gradient


steps = samples = 0
model = Net(8, 2)
optimizer = Slow(model.parameters(), lr=0.001)
while True:
    for x, y in DataLoader(Points(), batch_size=4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(Late.apply(model(x)), y)
        sleep_in("before backward")
        loss.backward()
        samples += len(y)
        print(steps + 1, samples, flush=True)
        optimizer.step()
        steps += 1
