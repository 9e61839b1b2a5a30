"""No torch optimizer: a class of its own keeps the parameters and updates them by hand."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Descent:
    def __init__(self, params, lr=0.01):
        self.params = list(params)
        self.lr = lr

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p in self.params:
            p -= self.lr * p.grad


torch.manual_seed(5)
data = TensorDataset(torch.randn(160, 8), torch.randn(160, 1))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = Descent(model.parameters())
while True:
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        print(len(y), loss.item(), flush=True)
        loss.backward()
        optimizer.step()
