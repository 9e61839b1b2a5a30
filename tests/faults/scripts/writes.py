"""Writes in every usual way while it trains, beside itself, and reads back what it wrote."""

import glob
import json
import os
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

os.chdir(os.path.dirname(os.path.abspath(__file__)))


class Files(Dataset):
    """Written by the main process, read by the workers."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.from_numpy(np.load(f"cache/{index % 8}.npy"))


os.makedirs("cache")
for index in range(8):
    np.save(f"cache/{index}.npy", np.full(4, index, dtype=np.float32))
assert sorted(glob.glob("cache/*.npy"))[0] == "cache/0.npy"

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)


def save(step):
    torch.save(model.state_dict(), "last.pt")
    shutil.copyfile("last.pt", "best.pt")
    model.load_state_dict(torch.load("best.pt"))
    with open("config.json.tmp", "w") as file:
        json.dump({"step": step}, file)
    os.replace("config.json.tmp", "config.json")
    with open("log.txt", "a") as file:
        file.write(f"step {step}\n")


def everything():
    os.remove("old.txt")
    assert not os.path.exists("old.txt")
    shutil.rmtree("previous")
    assert not Path("previous").exists()
    Path("notes.txt").write_text("notes")
    np.savetxt("table.txt", np.eye(2))
    np.eye(2).tofile("raw.bin")
    os.symlink("best.pt", "latest.pt")
    torch.load("latest.pt", mmap=True)
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), "traced.pt")
    torch.jit.load("traced.pt")
    with sqlite3.connect(database="runs.db") as database:
        database.execute("insert into runs values (2)")
    database.close()
    shutil.move("notes.txt", "moved.txt")
    names = sorted(os.listdir("."))
    print("listed", " ".join(names))
    print("read", Path("moved.txt").read_text(), json.load(open("config.json"))["step"], np.loadtxt("table.txt").sum())
    print("log", Path("log.txt").read_text().split("\n")[:2])


step = 0
while True:
    for x in DataLoader(Files(), batch_size=4, num_workers=1):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        step += 1
        if step == 1:
            save(step)
            everything()
        try:
            optimizer.step()
        finally:
            if step > 1:
                Path("final.txt").write_text("unwound")
