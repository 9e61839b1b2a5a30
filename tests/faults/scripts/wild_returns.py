"""A model that returns no tensors: `--returns distribution|nothing`.

`--decode` trains another on what it draws, `--unused` has a layer that nothing calls, `--past` calls it once and then a
method of it.
"""

import argparse

import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--returns", default="distribution")
parser.add_argument("--decode", action="store_true")
parser.add_argument("--unused", action="store_true")
parser.add_argument("--past", action="store_true")
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        if args.unused:
            self.unused = nn.Linear(3, 3)
        self.body, self.head = nn.Linear(32, 64), nn.Linear(64, 8)

    def drawn(self, x):
        return Normal(self.head(torch.relu(self.body(x))), 1.0)

    def forward(self, x):
        drawn = self.drawn(x)
        if args.returns == "distribution":
            return drawn
        self.kept = drawn
        return {"mean": drawn.mean.detach(), "size": len(x)}


torch.manual_seed(0)
net, decoder = Net(), nn.Linear(8, 32)
optimizer = torch.optim.Adam([*net.parameters(), *(decoder.parameters() if args.decode else ())])
data = TensorDataset(torch.randn(480, 32), torch.randn(480, 8))
net(data.tensors[0][:1])
while True:
    for x, y in DataLoader(data, batch_size=6):
        optimizer.zero_grad()
        returned = net.drawn(x) if args.past else net(x)
        drawn = returned if args.returns == "distribution" else net.kept
        loss = (decoder(drawn.rsample()) - x).square().mean() if args.decode else -drawn.log_prob(y).mean()
        loss.backward()
        optimizer.step()
