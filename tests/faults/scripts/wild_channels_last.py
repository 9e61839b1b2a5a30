"""Convolutions in channels_last, and a buffer that lies the same way."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.rand(1, 3, 8, 8))
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 2))

    def forward(self, x):
        assert (x - self.mean).is_contiguous(memory_format=torch.channels_last)
        return self.layers(x - self.mean)


model = Net().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.randn(640, 3, 8, 8), torch.randint(0, 2, (640,)))
while True:
    for x, y in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.contiguous(memory_format=torch.channels_last)), y)
        print(loss.item(), flush=True)
        loss.backward()
        optimizer.step()
