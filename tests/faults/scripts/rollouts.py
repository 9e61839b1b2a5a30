"""An agent that is trained through a method, and acts by it, by another and by one of its parts, without gradients."""

import torch
from torch import nn

OBSERVATIONS, ACTIONS, STEPS, EPOCHS = 6, 3, 16, 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 160), nn.Tanh(), nn.Linear(160, width))

    def forward(self, x):
        return x + self.layers(x)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBSERVATIONS, 320), Block(320), Block(320))
        self.critic = nn.Sequential(nn.Linear(320, 32), nn.Tanh(), nn.Linear(32, 1))
        self.actor = nn.Linear(320, ACTIONS)
        self.temperature = nn.Parameter(torch.ones(1))

    def get_value(self, x):
        return self.critic(self.body(x))

    def get_action_and_value(self, x, action=None):
        hidden = self.body(x)
        policy = torch.distributions.Categorical(logits=self.actor(hidden) * self.temperature)
        if action is None:
            action = policy.sample()
        return action, policy.log_prob(action), policy.entropy(), self.critic(hidden)


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=0.001)
observations = torch.randn(STEPS, 4, OBSERVATIONS)
while True:
    with torch.no_grad():
        acted = [agent.get_action_and_value(x) for x in observations]
        returns = agent.get_value(observations[-1]).flatten() + observations.sum(-1)
    with torch.inference_mode():
        agent.body[1](agent.body[0](observations[0]))
    actions, old = (torch.stack([step[i] for step in acted]) for i in (0, 1))
    for _ in range(EPOCHS):
        _, new, entropy, value = agent.get_action_and_value(observations.flatten(0, 1), actions.flatten())
        ratio = (new - old.flatten()).exp()
        loss = -(ratio * (returns.flatten() - value.detach().flatten())).mean() - 0.01 * entropy.mean()
        loss = loss + (value.flatten() - returns.flatten()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), flush=True)
