"""Two models and optimizers that train in turn on one batch, without a loader."""

import torch
from torch import nn

critic, actor = nn.Linear(6, 1), nn.Linear(4, 2)
criticise, act = torch.optim.Adam(critic.parameters()), torch.optim.Adam(actor.parameters())
while True:
    state = torch.randn(7, 4)
    action = actor(state)
    criticise.zero_grad()
    critic(torch.cat([state, action.detach()], 1)).pow(2).mean().backward()
    criticise.step()
    act.zero_grad()
    actor(state).pow(2).mean().backward()
    act.step()
