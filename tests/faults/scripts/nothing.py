"""`no_step`: trains nothing. `no_module`: trains a bare tensor. `functional`: it stands in for a model's parameter.

`short`: ends after five steps.
"""

import sys

import torch
from torch import nn

weight = nn.Parameter(torch.randn(8, 2))
model = nn.Linear(8, 2)
parameters = [weight] if sys.argv[1] in {"no_module", "functional"} else model.parameters()
optimizer = torch.optim.SGD(parameters, lr=0.1)
for _ in range({"no_step": 0, "no_module": 10_000, "functional": 10_000, "short": 5}[sys.argv[1]]):
    x = torch.randn(4, 8)
    output = x @ weight if sys.argv[1] == "no_module" else model(x)
    if sys.argv[1] == "functional":
        output = torch.func.functional_call(model, {"weight": weight.t()}, x)
    optimizer.zero_grad()
    output.pow(2).mean().backward()
    optimizer.step()
