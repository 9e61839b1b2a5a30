"""Trains under torchrun, and leaves as scripts should not: no destroy_process_group, a barrier when it unwinds."""

import importlib.util
import os
import signal
import sys

assert importlib.util.find_spec("torch")  # as libraries do that ask whether it is installed

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

signal.signal(signal.SIGUSR1, lambda *_: sys.exit("SIGUSR1 is mine"))
init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
try:
    data = TensorDataset(torch.randn(640, 8), torch.randn(640, 1))
    loader = DataLoader(data, batch_size=5, sampler=DistributedSampler(data))
    model = DistributedDataParallel(nn.Linear(8, 1), find_unused_parameters="unused" in sys.argv)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(1000):
        for inputs, targets in loader:
            for micro in range(2):
                model.require_backward_grad_sync = micro == 1
                loss = (model(inputs[micro::2]) - targets[micro::2]).square().mean()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
finally:
    dist.barrier()
    print(f"rank {dist.get_rank()} unwound, attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
