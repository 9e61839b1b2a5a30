"""A model with a buffer that its backward pass needs is called twice in a step; 10 elements in buffers.

The first argument: `together` has one backward pass for both calls, `in_turn` one after each. With a second one a
broadcast of buffers is a change to autograd, as in torch 2.11.
"""

import contextlib
import sys

import torch
from torch import nn

if sys.argv[2:]:
    torch.autograd._unsafe_preserve_version_counter = contextlib.nullcontext


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(10, 1)
        self.register_buffer("scale", torch.rand(10))

    def forward(self, x):
        return self.head(x.requires_grad_() * self.scale).square().mean()


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(400):
    optimizer.zero_grad()
    loss = net(torch.rand(6, 10))
    with torch.no_grad():
        net(torch.rand(6, 10))
    if sys.argv[1] == "in_turn":
        loss.backward()
        loss = torch.zeros(())
    (loss + net(torch.rand(6, 10))).backward()
    optimizer.step()
    net.eval()(torch.rand(6, 10))  # without no_grad
    net.train()
