from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from dpdoctor.worker.base import structure

NUM_RANKS = 4


@pytest.fixture
def ranks() -> Iterator[None]:
    """Make this process one of several, of which the others do not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=NUM_RANKS)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("keeps_own", [False, True])
def test_parameters_that_fsdp1_shards_count_whole(keeps_own: bool) -> None:
    inner, expected = nn.Linear(7, 3), (7 * 3 + 3) + (5 * 7 + 7)
    wrap = {"use_orig_params": keeps_own, "device_id": torch.device("cpu")}
    model = FullyShardedDataParallel(
        nn.Sequential(nn.Linear(5, 7), FullyShardedDataParallel(inner, **wrap), nn.Flatten()), **wrap
    )
    found = structure.sharded_elements(model.modules())
    assert sum(found[id(parameter)] for parameter in model.parameters()) == expected
    assert sum(parameter.numel() for parameter in model.parameters()) < expected


def test_other_parameters_are_whole() -> None:
    assert structure.sharded_elements(nn.Linear(3, 4).modules()) == {}


def test_they_are_those_that_the_module_tells_of_in_their_order() -> None:
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Sequential(nn.BatchNorm1d(2), nn.ReLU(), shared), nn.LSTM(2, 2))
    model[0].bias = model[1][0].bias
    model.register_module("none", None)
    assert list(map(id, structure.submodules(model))) == list(map(id, model.modules()))
    assert list(map(id, structure.parameters(model))) == list(map(id, model.parameters()))
    all_names = model.named_parameters(remove_duplicate=False)
    assert [(name, id(p)) for name, p in structure.by_names(model)] == [(name, id(p)) for name, p in all_names]


def test_one_that_was_never_initialised_has_none() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            """Leave the base class's attributes out."""

    assert list(structure.parameters(Bare())) == []
    assert torch.is_tensor(next(structure.parameters(nn.Linear(1, 1))))
