from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from dpdoctor.worker.data import hand_off
from dpdoctor.worker.data.specimen import Specimen
from tests.builders.rig import Rig

pytestmark = [pytest.mark.measured, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]

# The machine may be busy with other tests.
PATIENT_S = 60.0


class Items:
    """Small samples; one of them may hold something that is not known."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.item


def train(*loaders: DataLoader[Any]) -> None:
    for loader in loaders:
        for _ in loader:
            pass


@pytest.mark.parametrize("workers", [0, 1])
def test_moving_a_batch_is_measured(rig: Rig, workers: int) -> None:
    rig.loaders._inside._clock = time.monotonic_ns  # type: ignore[union-attr]
    train(DataLoader(Items({"x": torch.zeros(16), "y": 1}), batch_size=4, num_workers=workers))  # type: ignore[arg-type]
    states = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    records, batches = rig.loaders.records(), len(rig.batches)
    rig.loaders.measure_hand_offs(PATIENT_S)
    (cost,) = rig.loaders.hand_offs()
    assert (cost.loader, cost.num_bytes, cost.num_tensors) == (0, 4 * 16 * 4 + 4 * 8, 2)
    assert hand_off.LEAST_BATCHES <= cost.n < hand_off.BATCHES
    assert min(cost.send_ns, cost.receive_ns) > 0
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (str(np.random.get_state()), random.getstate()) == states[1:]
    assert (rig.loaders.records(), len(rig.batches)) == (records, batches), "it is none of the script's loaders"


def test_each_loader_that_trained_has_its_cost(rig: Rig) -> None:
    rig.loaders._inside._clock = time.monotonic_ns  # type: ignore[union-attr]
    known, unknown = Items(torch.zeros(2)), Items(object())
    train(DataLoader(known, batch_size=2), DataLoader(unknown, batch_size=4, collate_fn=list), DataLoader(known))  # type: ignore[arg-type]
    with torch.no_grad():
        train(DataLoader(known, batch_size=8))  # type: ignore[arg-type]
    rig.loaders.measure_hand_offs(PATIENT_S)
    assert [cost.loader for cost in rig.loaders.hand_offs()] == [0, 2]


def test_what_takes_too_long_is_left_unknown() -> None:
    specimen = Specimen(1, shared=False, pin_memory=False)
    assert hand_off.measure(0, specimen, time.monotonic_ns, 0.0) is None


class Dies(list[Any]):
    def __iter__(self) -> Any:
        raise MemoryError


def test_a_worker_that_fails_leaves_it_unknown() -> None:
    specimen = Specimen(Dies(), shared=False, pin_memory=False)
    assert hand_off.measure(0, specimen, time.monotonic_ns, PATIENT_S) is None
