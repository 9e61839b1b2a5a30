from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dpdoctor.worker.base.mode import Passes, WrapOptions
from dpdoctor.worker.modes.ddp import DDP

HOW = WrapOptions(has_unused=False, fsdp_wrap=None, optimizers=(), warn=pytest.fail)


def converted(mode: DDP, module: nn.Module, how: WrapOptions = HOW) -> Callable[..., Any]:
    return mode.around(module, mode.convert(module, how))


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_module_is_wrapped_while_a_graph_holds_buffers_that_it_shares(is_inside: bool) -> None:
    mode, told = DDP(), set()
    mode.passes, how = Passes(), dataclasses.replace(HOW, warn=told.add)
    norm = nn.BatchNorm1d(4, affine=False)
    first = nn.Sequential(nn.Linear(4, 4), norm)
    second = nn.Sequential(first if is_inside else norm, nn.Linear(4, 1))
    x = torch.rand(8, 4)
    loss = converted(mode, first)(x).sum()
    (loss + converted(mode, second, how)(x).sum()).backward()
