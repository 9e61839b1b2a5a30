"""The model is called inside of a function that is compiled: `loss`, `fullgraph`, `step` with its backward pass, `method`.

`after` calls the model by itself before.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

how = sys.argv[1]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.layers(x)

    def loss(self, x, y):
        return nn.functional.mse_loss(self(x), y)


@torch.compile(backend="eager", fullgraph=how == "fullgraph")
def loss_of(x, y):
    return nn.functional.mse_loss(model(x), y)


@torch.compile(backend="eager")
def step(x, y):
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
function = {"step": step, "method": torch.compile(model.loss, backend="eager")}.get(how, loss_of)
if how == "after":
    model(torch.randn(6, 8)).mean().backward()
while True:
    for x, y in DataLoader(TensorDataset(torch.randn(480, 8), torch.randn(480, 1)), batch_size=6):
        optimizer.zero_grad()
        loss = function(x, y)
        if how != "step":
            loss.backward()
        optimizer.step()
        print(loss.item(), flush=True)
