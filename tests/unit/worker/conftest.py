"""Watching a script changes torch for the whole process: every test here must leave it as it was."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer, optimizer
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.timing.recorder import Recorder
from tests.builders.handclock import HandClock
from tests.builders.rig import Rig


def what_a_rank_touches() -> dict[str, Any]:
    return {
        "module call": nn.Module.__call__,
        "module train": nn.Module.train,
        "backward": torch.autograd.backward,
        "optimizer init": vars(Optimizer)["__init__"],
        "optimizer setstate": vars(Optimizer)["__setstate__"],
        "scaler step": vars(GradScaler)["step"],
        "pre hooks": list(optimizer._global_optimizer_pre_hooks),
        "post hooks": list(optimizer._global_optimizer_post_hooks),
        "index sampler": vars(DataLoader)["_index_sampler"],
        "loader iter": vars(DataLoader)["__iter__"],
        "loader next": vars(_BaseDataLoaderIter)["__next__"],
        "tensor to": "to" in vars(torch.Tensor),
        "gc callbacks": [c for c in gc.callbacks if isinstance(getattr(c, "__self__", None), Recorder)],
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
    }


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    """Fail a test that leaves torch changed; put the random numbers back."""
    before = what_a_rank_touches()
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    after = what_a_rank_touches()
    assert {name for name in before if before[name] != after[name]} == set()


@pytest.fixture
def patches() -> Iterator[Patches]:
    """Give patches that are undone after the test."""
    held = Patches()
    yield held
    held.undo()


@pytest.fixture
def ranks() -> Iterator[None]:
    """Let parallel wrappers be made: this process is the only rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def clock() -> HandClock:
    """Give a clock that stands at 0."""
    return HandClock()


@pytest.fixture
def rig(patches: Patches) -> Rig:
    """Give the watching parts of a rank in mode `single`."""
    return Rig(patches)
