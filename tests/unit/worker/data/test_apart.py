from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, SequentialSampler

from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.data import apart
from dpdoctor.worker.data.apart import given_indices, made_up, possible_indices
from tests.builders.rig import Rig

KEYS = ["a", "b", "c"]


class Items(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: Any) -> torch.Tensor:
        return torch.zeros(1)


@pytest.mark.parametrize(
    ("sampler", "number"),
    [
        (SequentialSampler(range(4)), 4),
        (RandomSampler(range(4), num_samples=100, replacement=True), 4),
        (DistributedSampler(Items(), num_replicas=2, rank=1), 10),
    ],
)
def test_torchs_own_samplers_need_not_be_asked(sampler: Any, number: int) -> None:
    loader = DataLoader(Items(), sampler=sampler)
    assert possible_indices(loader) == range(number)
    assert given_indices(loader) is None


def test_of_another_sampler_what_it_gave_is_known(patches: Patches) -> None:
    Rig(patches)
    loader = DataLoader(Items(), batch_size=2, sampler=KEYS)
    assert made_up(loader, 1) == []
    list(loader)
    assert possible_indices(loader) == KEYS
    batches = made_up(loader, 5)
    assert [len(batch) for batch in batches] == [2] * 5
    assert {key for batch in batches for key in batch} <= set(KEYS)


def test_no_more_is_remembered_than_is_of_use(patches: Patches, monkeypatch: pytest.MonkeyPatch) -> None:
    Rig(patches)
    monkeypatch.setattr(apart, "MOST_GIVEN", 3)
    loader = DataLoader(Items(), batch_size=2, sampler=[1, 7, 5, 3])
    list(loader)
    assert possible_indices(loader) == [7, 5, 3]


def test_a_batch_that_a_sampler_draws_whole_is_no_index(patches: Patches) -> None:
    Rig(patches)
    loader = DataLoader(Items(), batch_sampler=[[0, 1], [2, 3]])
    list(loader)
    assert possible_indices(loader) == range(10)
    assert made_up(loader, 1) == []
