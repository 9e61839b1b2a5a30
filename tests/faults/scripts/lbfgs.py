"""L-BFGS: one step calls its closure, forward and backward, up to four times on the same batch.

`even`: two ranks can hold equal parts of each parameter. `once`, and how often: one step, which does all the training.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
width = 16 if sys.argv[1:] == ["even"] else 15
x = torch.randn(320, 8)
data = TensorDataset(x, x.sin())
model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 8))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, history_size=5)
if sys.argv[1:2] == ["once"]:
    often = int(sys.argv[2])
    once = {"max_iter": often, "max_eval": often, "tolerance_grad": -1, "tolerance_change": -1}
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-6, **once)
while True:
    for x, y in DataLoader(data, batch_size=32, shuffle=True):

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        print(len(y), flush=True)
        loss = optimizer.step(closure)
        print(f"loss {loss:.6f}", flush=True)
        if sys.argv[1:2] == ["once"]:
            sys.exit()
