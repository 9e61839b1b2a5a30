"""A training script that does much beside training; what, says its argument. Run by own_cost.py, bare and watched."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

KIND = sys.argv[1]
DATA = Path("data")


class Items(Dataset[tuple[torch.Tensor, int]]):
    """6,400 items, each made in the way of its kind."""

    def __len__(self) -> int:
        return 6400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if KIND == "seeds":
            torch.manual_seed(index)
        elif KIND == "stats":
            for number in range(4):
                os.stat(DATA / f"{number}.json")  # noqa: PTH116
        elif KIND == "exists":
            (DATA / f"{index}.none").exists()
        elif KIND == "lists":
            len(os.listdir(DATA))  # noqa: PTH208
        elif KIND == "loads":
            np.load(DATA / "array.npy")
        elif KIND == "tensors":
            torch.load(DATA / "tensor.pt")
        elif KIND == "json":
            json.loads((DATA / "0.json").read_text())
        return torch.randn(64), index % 10


def beside(step: int) -> None:
    """Do what a training loop does beside its step."""
    if KIND == "logs":
        with Path("log.jsonl").open("a") as file:
            file.write(json.dumps({"step": step}) + "\n")
    elif KIND == "checkpoints" and step % 10 == 0:
        torch.save(model.state_dict(), "checkpoint.pt")
    elif KIND == "temporary":
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"x" * 1000)


DATA.mkdir(exist_ok=True)
for name in range(4):
    (DATA / f"{name}.json").write_text(json.dumps(list(range(100))))
np.save(DATA / "array.npy", np.zeros((64, 64)))
torch.save(torch.zeros(64, 64), DATA / "tensor.pt")
Path("note.txt").write_text("this script has written a file")
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
total = 0
for _ in range(1000):
    for inputs, targets in DataLoader(Items(), batch_size=32):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        total += 1
        beside(total)
