"""A stack of blocks; what scripts do with parameters: `--do clip|ema|deepcopy|numpy|scalar|tied|reload|attribute`.

And their hooks: `--do hook|hook_removed|hook_late|accumulated_late|node|node_late`. `--at`: the step of both copies.
"""

import argparse
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--do", default="plain")
parser.add_argument("--at", type=int, default=5)
args = parser.parse_args()
do = args.do


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(128, 512)
        self.narrow = nn.Linear(512, 128)

    def forward(self, x):
        return x + getattr(self.wide.weight, "share", 1) * self.narrow(self.wide(x).relu())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 128, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(128, 8, bias=False)
        self.scale = nn.Parameter(torch.ones(() if do == "scalar" else 1))

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale


def none_of(gradient):
    return torch.zeros_like(gradient)


def clamp(parameter):
    parameter.grad.clamp_(-1e-4, 1e-4)


def clamped(parameter):
    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: clamp(parameter))
    return node


torch.manual_seed(5)
data = TensorDataset(torch.randn(160, 8), torch.randn(160, 8))
model = Net()
if do == "tied":
    model.blocks[2].wide.weight = model.blocks[0].wide.weight
parameters = list(model.parameters())
optimizer = torch.optim.AdamW(parameters, lr=0.001)
if do == "reload":
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
if do in ("hook", "hook_removed"):
    handles = [parameter.register_hook(none_of) for parameter in model.blocks.parameters()]
    while do == "hook_removed" and handles:
        handles.pop().remove()
if do == "node":
    nodes = [clamped(parameter) for parameter in parameters]
average = copy.deepcopy(model)
step = 0
while True:
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        step += 1
        for parameter in parameters if step == 2 else []:
            if do == "hook_late":
                parameter.register_hook(none_of)
            elif do == "accumulated_late":
                parameter.register_post_accumulate_grad_hook(clamp)
            elif do == "attribute":
                parameter.share = 0.1
        if do == "node_late" and step == 2:
            nodes = [clamped(parameter) for parameter in parameters]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        if do == "clip":
            norm = nn.utils.clip_grad_norm_(parameters, 1.0)
            print(f"norm {norm:.5f}")
        print(loss.item(), flush=True)
        optimizer.step()
        if do == "ema":
            with torch.no_grad():
                for mean, new in zip(average.parameters(), model.parameters()):
                    mean.mul_(0.9).add_(new, alpha=0.1)
        if do == "deepcopy" and step == args.at:
            copy.deepcopy(model)
        if do == "numpy" and step == args.at:
            model.scale.detach().numpy()
