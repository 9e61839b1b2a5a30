"""Trains with dropout, a sampler that draws from the global generator and loader workers; says what came of it."""

import hashlib
import random

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(1 + dist.get_rank())
random.seed(dist.get_rank())
numpy.random.seed(dist.get_rank())
data = TensorDataset(torch.linspace(0, 1, 1280).reshape(160, 8), torch.linspace(-1, 1, 160).reshape(160, 1))
loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=1)
layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 1))
model = DistributedDataParallel(layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(3):
    for inputs, targets in loader:
        inputs = inputs + random.random() + float(numpy.random.rand()) + torch.rand(())
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
if dist.get_rank() == 0:
    torch.save(layers.state_dict(), "last.pt")
    print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
dist.barrier()
dist.destroy_process_group()
