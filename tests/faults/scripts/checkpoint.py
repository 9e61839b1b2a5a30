"""Saves every five steps and loads again: `last`, what it just saved, `first`, of before training, or the `model`."""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

what = sys.argv[1]
torch.manual_seed(5)
data = TensorDataset(torch.randn(160, 8), torch.randn(160, 1))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
step = 0
with tempfile.TemporaryDirectory() as directory:
    first, last, whole = (Path(directory) / name for name in ("first.pt", "last.pt", "whole.pt"))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, first)
    while True:
        for x, y in DataLoader(data, batch_size=8, shuffle=True):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            print(len(y), loss.item(), flush=True)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 5 == 0 and what == "model":
                torch.save(model, whole)
                with torch.no_grad():
                    torch.load(whole, weights_only=False)(x)
            elif step % 5 == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, last)
                checkpoint = torch.load(last if what == "last" else first)
                model.load_state_dict(checkpoint["model"])
                optimizer.load_state_dict(checkpoint["optimizer"])
