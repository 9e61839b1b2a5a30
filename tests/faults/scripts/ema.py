"""Keeps a moving average of the model: torch's `AveragedModel`, and a deepcopy of the model every five steps."""

import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
data = TensorDataset(torch.randn(160, 8), torch.randn(160, 1))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
while True:
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        print(len(y), loss.item(), flush=True)
        loss.backward()
        optimizer.step()
        step += 1
        average.update_parameters(model)
        if step % 5 == 0:
            best = copy.deepcopy(model)
            with torch.no_grad():
                average(x), best(x)
