"""Sequences of shape (time, batch) without a loader, and a buffer that is a transposed view, as in many tutorials."""

import torch
from torch import nn


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.register_buffer("positions", torch.randn(32, 16).unsqueeze(0).transpose(0, 1))
        self.head = nn.Linear(16, 50)

    def forward(self, tokens):
        return self.head(self.embed(tokens) + self.positions[: len(tokens)])


model = Positions()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    tokens = torch.randint(0, 50, (12, 5))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens[:-1]).flatten(0, 1), tokens[1:].flatten()).backward()
    optimizer.step()
