"""Mixed precision: `bf16` under autocast, `fp16` under autocast with a GradScaler. Everything on the CPU."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[sys.argv[1]]
torch.manual_seed(5)
data = TensorDataset(torch.randn(160, 16), torch.randint(0, 4, (160,)))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)
while True:
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=dtype):
            loss = nn.functional.cross_entropy(model(x), y)
        print(len(y), loss.item(), flush=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
