"""A model that is called with a list of images of different sizes, without a loader."""

import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, images):
        return torch.stack([self.conv(image).mean() for image in images])


model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    model([torch.randn(3, 8 + i, 8) for i in range(5)]).mean().backward()
    optimizer.step()
