"""`no_step`: trains nothing. `no_module`: trains a bare parameter, `image`: a tensor that is none. `functional`: it stands
in for a model's parameter; `func`: so does what torch.func trains, without an optimizer. `copies`:
copies of a model's parameters stand in the optimizer, as plain tensors or, `held_copies`, as parameters.

`by_hand`: has tensors alone, and updates them without an optimizer. `short`: ends after five steps.
"""

import sys

import torch
from torch import nn

if sys.argv[1] == "by_hand":
    weight = torch.randn(8, 2, requires_grad=True)
    for _ in range(10_000):
        (torch.randn(4, 8) @ weight).pow(2).mean().backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            weight.grad.zero_()
    sys.exit()
weight = nn.Parameter(torch.randn(8, 2))
image = torch.randn(4, 8, requires_grad=True)
model = nn.Linear(8, 2)
if sys.argv[1] == "func":
    loss = torch.func.grad(lambda held: torch.func.functional_call(model, held, image).pow(2).mean())
    trained = {name: p.detach() for name, p in model.named_parameters()}
    for _ in range(5):
        trained = {name: trained[name] - 0.1 * gradient for name, gradient in loss(trained).items()}
    sys.exit()
parameters = [weight] if sys.argv[1] in {"no_module", "functional"} else model.parameters()
parameters = [image] if sys.argv[1] == "image" else parameters
copies = [p.detach().clone() for p in model.parameters()]
if "copies" in sys.argv[1]:
    parameters = list(map(nn.Parameter, copies)) if sys.argv[1] == "held_copies" else copies
optimizer = torch.optim.SGD(parameters, lr=0.1)
trained = dict.fromkeys(("no_module", "image", "functional", "copies", "held_copies"), 10_000)
for _ in range({"no_step": 0, "short": 5, **trained}[sys.argv[1]]):
    x = image if sys.argv[1] == "image" else torch.randn(4, 8)
    output = x @ weight if sys.argv[1] == "no_module" else model(x)
    if sys.argv[1] == "functional":
        output = torch.func.functional_call(model, {"weight": weight.t()}, x)
    optimizer.zero_grad()
    output.pow(2).mean().backward()
    if "copies" in sys.argv[1]:
        for copy, p in zip(optimizer.param_groups[0]["params"], model.parameters(), strict=True):
            copy.grad, p.grad = p.grad, None
    optimizer.step()
