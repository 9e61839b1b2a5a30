"""A trainer that is a module itself holds two models, each with an optimizer of its own; its method runs the loop."""

import torch
from torch import nn


class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(4, 8)
        self.optimizers = [torch.optim.Adam(part.parameters()) for part in (self.encoder, self.decoder)]

    def fit(self):
        for _ in range(100_000):
            x = torch.randn(16, 8)
            loss = (self.decoder(self.encoder(x)) - x).square().mean()
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in self.optimizers:
                optimizer.step()


Trainer().fit()
