"""A method of the model holds the whole step, backward included, and calls its parts."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 2)

    def fit(self, x, y, optimizer):
        optimizer.zero_grad()
        nn.functional.cross_entropy(self.second(self.first(x).relu()), y).backward()
        optimizer.step()


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model.fit(torch.randn(4, 8), torch.randint(0, 2, (4,)), optimizer)
