"""A progress bar that is as wide as the terminal on stdin, which is asked while modules are imported."""

import os
import subprocess
import sys

_, width = os.popen("stty size", "r").read().split()
print("width", width, os.get_terminal_size().columns)
# Nobody sits there.
print("read", repr(sys.stdin.read()), repr(os.read(0, 1)), sys.stdin.isatty())
print("programs", subprocess.run("cat; read line || echo end", shell=True, stdout=subprocess.PIPE).stdout.decode())

import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(640, 8), torch.randint(0, 2, (640,)))
while True:
    for x, y in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
