"""A model of two heads that are trained in turn, each by a backward pass that the other has no part in; two steps."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])

    def forward(self, x):
        return [head(x) for head in self.heads]


net = Net()
optimizers = [torch.optim.SGD(head.parameters(), lr=0.01) for head in net.heads]
for step in range(400):
    optimizers[step % 2].zero_grad()
    net(torch.randn(6, 4))[step % 2].sum().backward()
    optimizers[step % 2].step()
