"""Writes beside itself past Python's file functions: by child programs, and modes by descriptors."""

import os
import subprocess

import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
print(
    "copied", subprocess.run(["cp", "theirs.txt", "precious.txt"], check=False).returncode, open("precious.txt").read()
)
os.system("chmod 600 mode.txt")
while True:
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
