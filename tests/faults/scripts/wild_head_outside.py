"""A loop that calls its model's forward by name, and the head, a part of it, where the loss is computed; no loader."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(50, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 50)

    def forward(self, tokens):
        return self.rnn(self.embed(tokens))[0]


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    tokens = torch.randint(50, (16, 11))
    hidden = model.forward(tokens[:, :-1])
    loss = nn.functional.cross_entropy(model.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
