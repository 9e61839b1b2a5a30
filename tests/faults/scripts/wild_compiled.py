"""A compiled model is evaluated before it trains: dynamo has seen it without gradients first."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 2)

    def forward(self, x):
        return self.second(self.first(x).relu())


model = torch.compile(Net(), backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.no_grad():
    model.eval()
    model(torch.randn(4, 8))
    model.train()
while True:
    for _ in range(3):
        x, y = torch.randn(4, 8), torch.randint(0, 2, (4,))
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
