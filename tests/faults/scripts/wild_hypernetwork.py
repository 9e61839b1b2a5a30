"""Trains a network that makes the weights of another: the batches enter that one, and a point drawn alike the former."""

import numpy as np
import torch
from torch import nn

np.random.seed(0)
torch.manual_seed(0)
hyper = nn.Linear(2, 8 * 3)
optimizer = torch.optim.SGD(hyper.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(640, 8), torch.randn(640, 3))
while True:
    for x, y in torch.utils.data.DataLoader(data, batch_size=16, shuffle=True):
        point = torch.from_numpy(np.random.dirichlet((0.2, 0.2)).astype(np.float32))
        optimizer.zero_grad()
        nn.functional.mse_loss(x @ hyper(point).view(8, 3), y).backward()
        optimizer.step()
