"""Two large parts of one class hold the same module of embeddings."""

import torch
from torch import nn


class Part(nn.Module):
    def __init__(self, embeddings):
        super().__init__()
        self.embeddings = embeddings
        self.layers = nn.Sequential(nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10))

    def forward(self, ids):
        return self.layers(self.embeddings(ids))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        embeddings = nn.Embedding(10, 400)
        self.encoder, self.decoder = Part(embeddings), Part(embeddings)

    def forward(self, ids):
        return self.encoder(ids) + self.decoder(ids)


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(200):
    optimizer.zero_grad()
    net(torch.randint(10, (6,))).square().mean().backward()
    optimizer.step()
