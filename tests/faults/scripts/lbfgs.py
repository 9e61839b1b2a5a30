"""L-BFGS: one step calls its closure, forward and backward, up to four times on the same batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
x = torch.randn(320, 8)
data = TensorDataset(x, x.sin().sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=5)
while True:
    for x, y in DataLoader(data, batch_size=32, shuffle=True):

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        print(len(y), flush=True)
        optimizer.step(closure)
