"""One rank fails at its 20th step: raises, is killed, or hangs and prints for ever. Alone, the script trains on."""

import os
import signal
import sys
import time

import torch
from torch import nn
from torch.distributed import distributed_c10d
from torch.utils.data import DataLoader, TensorDataset

how = sys.argv[1]
try:
    rank = distributed_c10d.get_rank()  # torch.distributed answers scripts as if they ran alone
except ValueError:
    rank = 0
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(640, 8), torch.randint(0, 2, (640,)))
loader = DataLoader(data, batch_size=4, num_workers=1, persistent_workers=True)
step = 0
while True:
    for x, y in loader:
        step += 1
        if rank == 1 and step == 20:
            print("rank 1 is about to fail", file=sys.stderr, flush=True)
            if how == "raise":
                raise ValueError("planted")
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            while True:
                print("still here", flush=True)
                time.sleep(0.2)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if how == "wait":
            time.sleep(0.02)
