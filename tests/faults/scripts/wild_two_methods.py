"""A model that nobody calls: an actor and a critic over shared layers, each a method; one backward pass for both."""

import torch
from torch import nn


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.actor, self.critic = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)

    def pi(self, x):
        return self.actor(self.shared(x))

    def v(self, x):
        return self.critic(self.shared(x))


net = ActorCritic()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(400):
    states = torch.randn(6, 4)
    loss = net.pi(states).logsumexp(1).mean() + net.v(states).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(float(loss))
