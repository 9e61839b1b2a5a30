"""Two tasks on one body whose gradients are combined by hand: `--by grad|named|backward`, with one forward for both."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--by", default="backward")
by = parser.parse_args().by


class Tasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.heads = nn.ModuleList([nn.Linear(16, 1), nn.Linear(16, 1)])

    def forward(self, x):
        hidden = self.body(x).tanh()
        return [head(hidden) for head in self.heads]


def gradients(losses):
    if by == "grad":
        return [torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True) for loss in losses]
    if by == "named":
        named = dict(model.named_parameters())
        return [torch.autograd.grad(loss, named, retain_graph=True, allow_unused=True).values() for loss in losses]
    found = []
    for loss in losses:
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        found.append([None if p.grad is None else p.grad.clone() for p in parameters])
    return found


model = Tasks()
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(640, 8), torch.randn(640, 2))
while True:
    for x, y in torch.utils.data.DataLoader(data, batch_size=4):
        losses = [nn.functional.mse_loss(out.squeeze(1), y[:, i]) for i, out in enumerate(model(x))]
        for parameter, each in zip(parameters, zip(*gradients(losses))):
            parameter.grad = sum(gradient for gradient in each if gradient is not None)
        optimizer.step()
