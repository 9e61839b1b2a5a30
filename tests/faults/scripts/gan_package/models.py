"""A generator and a discriminator of points in the plane."""

from torch import nn


class Generator(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))


class Discriminator(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
