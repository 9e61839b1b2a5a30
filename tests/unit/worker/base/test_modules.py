"""What a module is made of, by its attributes."""

from __future__ import annotations

import torch
from torch import nn

from dpdoctor.worker.base import modules


def test_they_are_those_that_the_module_tells_of_in_their_order() -> None:
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Sequential(nn.BatchNorm1d(2), nn.ReLU(), shared), nn.LSTM(2, 2))
    model[0].bias = model[1][0].bias
    model.register_module("none", None)
    assert list(map(id, modules.submodules(model))) == list(map(id, model.modules()))
    assert list(map(id, modules.parameters(model))) == list(map(id, model.parameters()))
    all_names = model.named_parameters(remove_duplicate=False)
    assert [(name, id(p)) for name, p in modules.by_names(model)] == [(name, id(p)) for name, p in all_names]


def test_one_that_was_never_initialised_has_none() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            """Leave the base class's attributes out."""

    assert list(modules.parameters(Bare())) == []
    assert torch.is_tensor(next(modules.parameters(nn.Linear(1, 1))))
