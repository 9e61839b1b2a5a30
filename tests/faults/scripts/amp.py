"""fp16 under autocast with a GradScaler; clips by value, by norm, by a norm computed first, and by hand."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
data = TensorDataset(torch.randn(160, 16), torch.randint(0, 4, (160,)))
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
while True:
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        total = nn.utils.get_total_norm([p.grad for p in parameters])
        nn.utils.clip_grads_with_norm_(parameters, 0.5, total)
        for parameter in model.parameters():
            parameter.grad.clamp_(-0.1, 0.1)
        print(len(y), loss.item(), f"{norm:.4f}", flush=True)
        scaler.step(optimizer)
        scaler.update()
