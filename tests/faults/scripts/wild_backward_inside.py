"""Each layer trains itself where the model calls it: its forward runs the backward pass and the optimizer's step."""

import torch
from torch import nn


class Layer(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.01)

    def forward(self, x):
        output = super().forward(x.detach()).relu()
        self.optimizer.zero_grad()
        output.square().mean().backward()
        self.optimizer.step()
        return output.detach()


layers = [Layer(8, 16), Layer(16, 4)]
while True:
    x = torch.randn(8, 8)
    for layer in layers:
        x = layer(x)
