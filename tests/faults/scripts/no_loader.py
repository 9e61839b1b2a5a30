"""No DataLoader: one permutation per epoch, and slices of two tensors; the last batch of an epoch is smaller."""

import torch
from torch import nn

torch.manual_seed(5)
x, y = torch.randn(100, 8), torch.randn(100, 1)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    order = torch.randperm(len(x))
    for begin in range(0, len(x), 8):
        batch = order[begin : begin + 8]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[batch]), y[batch])
        print(len(batch), loss.item(), flush=True)
        loss.backward()
        optimizer.step()
