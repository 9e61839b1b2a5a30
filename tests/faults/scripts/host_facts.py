"""Waits for its loss twice a step, and after every epoch evaluates for a known time and saves a known size."""

import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EVALUATION_S = 0.060
WEIGHTS = torch.zeros(1_000_000)
forgets_no_grad = sys.argv[1] == "forgets no_grad"
data = TensorDataset(torch.randn(40, 8), torch.randn(40, 1))
held_out = DataLoader(TensorDataset(torch.randn(12, 8)), batch_size=4)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def evaluate():
    model.eval()
    for (x,) in held_out:
        model(x)
        time.sleep(EVALUATION_S / len(held_out))
    model.train()


with tempfile.TemporaryDirectory() as directory:
    while True:
        for x, y in DataLoader(data, batch_size=4, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            running = loss.item()
            print(loss, flush=True)
            loss.backward()
            optimizer.step()
        times = [time.monotonic_ns()]
        if forgets_no_grad:
            evaluate()
        else:
            with torch.no_grad():
                evaluate()
        times.append(time.monotonic_ns())
        torch.save({"weights": WEIGHTS}, Path(directory, "last.pt"))
        print("evaluated and saved", *times, time.monotonic_ns(), flush=True)
