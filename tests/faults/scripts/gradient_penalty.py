"""A critic with a gradient penalty, which needs gradients of gradients."""

import torch
from torch import nn

critic = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=0.001)


def penalty(real, fake):
    mixed = (real + torch.rand(len(real), 1) * (fake - real)).requires_grad_()
    gradients = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
    return (gradients.norm(dim=1) - 1).square().mean()


while True:
    real, fake = torch.randn(16, 8), torch.randn(16, 8) + 1
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(real, fake)
    optimizer.zero_grad()
    loss.backward()
    print(loss.item(), flush=True)
    optimizer.step()
