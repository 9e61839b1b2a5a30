"""A model that returns no tensors: `--returns distribution|nothing`; `--decode` trains another on what it draws, and
`--unused` has a layer that nothing calls."""

import argparse

import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--returns", default="distribution")
parser.add_argument("--decode", action="store_true")
parser.add_argument("--unused", action="store_true")
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        if args.unused:
            self.unused = nn.Linear(3, 3)
        self.body, self.head = nn.Linear(32, 64), nn.Linear(64, 8)

    def forward(self, x):
        drawn = Normal(self.head(torch.relu(self.body(x))), 1.0)
        if args.returns == "distribution":
            return drawn
        self.kept = drawn
        return {"mean": drawn.mean.detach(), "size": len(x)}


torch.manual_seed(0)
net, decoder = Net(), nn.Linear(8, 32)
optimizer = torch.optim.Adam([*net.parameters(), *(decoder.parameters() if args.decode else ())])
data = TensorDataset(torch.randn(480, 32), torch.randn(480, 8))
while True:
    for x, y in DataLoader(data, batch_size=6):
        optimizer.zero_grad()
        returned = net(x)
        drawn = returned if args.returns == "distribution" else net.kept
        loss = (decoder(drawn.rsample()) - x).square().mean() if args.decode else -drawn.log_prob(y).mean()
        loss.backward()
        optimizer.step()
