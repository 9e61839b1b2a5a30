"""Puts new parameters where a script, and its optimizers, hold the old ones."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

Parameters = dict[int, tuple[nn.Parameter, nn.Parameter]]


def replacements(before: dict[str, nn.Parameter], module: nn.Module) -> Parameters:
    """Return old and new parameter of each name, by the id of the old one."""
    after = dict(module.named_parameters(remove_duplicate=False))
    return {id(old): (old, after[name]) for name, old in before.items() if after[name] is not old}


def repoint(
    changed: Parameters,
    optimizers: Sequence[Optimizer],
    distribute: Callable[[torch.Tensor, nn.Parameter], torch.Tensor],
) -> None:
    """Replace old parameters by new ones in the optimizers, their state, and every list and dict that holds one.

    Args:
        changed: what `replacements` returned.
        optimizers: the script's optimizers.
        distribute: makes a state tensor of the old parameter's shape into one of the new parameter's kind.
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [changed[id(p)][1] if id(p) in changed else p for p in group["params"]]
        _move_state(optimizer, changed, distribute)
    # One pass over everything that lives: a pass for each parameter would take minutes.
    for holder in gc.get_referrers(*(old for old, _ in changed.values())):
        _replace_in(holder, changed)


def _replace_in(holder: object, changed: Parameters) -> None:
    if isinstance(holder, list):
        holder[:] = [changed[id(item)][1] if id(item) in changed else item for item in holder]
        return
    attributes = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
    for name in [name for name, item in attributes.items() if id(item) in changed]:
        attributes[name] = changed[id(attributes[name])][1]


def _move_state(
    optimizer: Optimizer, changed: Parameters, distribute: Callable[[torch.Tensor, nn.Parameter], torch.Tensor]
) -> None:
    for old, new in changed.values():
        if old in optimizer.state:
            state = optimizer.state.pop(old)
            optimizer.state[new] = {
                key: distribute(value, new) if isinstance(value, torch.Tensor) and value.shape == old.shape else value
                for key, value in state.items()
            }
