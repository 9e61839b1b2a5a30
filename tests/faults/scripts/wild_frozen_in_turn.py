"""Two models that train in turn, the other one frozen meanwhile; and a frozen backbone that an optimizer holds.

`generator` or `critic`: which of them trains first.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def block(width_in, width_out):
    return nn.Sequential(nn.Linear(width_in, 16), nn.ReLU(), nn.Linear(16, width_out))


def train(generator, critic):
    for model, is_trained in ((generator, True), (critic, False)):
        model.requires_grad_(is_trained)
    act.zero_grad()
    critic(backbone(generator(torch.randn(6, 4)))).mean().backward()
    act.step()


def criticise(generator, critic, x):
    for model, is_trained in ((generator, False), (critic, True)):
        model.requires_grad_(is_trained)
    judge.zero_grad()
    (critic(backbone(generator(torch.randn(6, 4)))) - critic(backbone(x))).mean().backward()
    judge.step()


torch.manual_seed(0)
generator, critic, backbone = block(4, 8), block(8, 1), nn.Linear(8, 8)
act = torch.optim.Adam([*generator.parameters(), *backbone.parameters()], lr=0.001)
judge = torch.optim.Adam(critic.parameters(), lr=0.001)
backbone.requires_grad_(False)
while True:
    for (x,) in DataLoader(TensorDataset(torch.randn(480, 8)), batch_size=6):
        if sys.argv[1] == "generator":
            train(generator, critic)
            criticise(generator, critic, x)
        else:
            criticise(generator, critic, x)
            train(generator, critic)
