"""Whether the script's dataset works in a worker."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from dpdoctor.worker.data import inside, trial
from tests.builders.rig import Rig

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

# The machine may be busy with other tests.
PATIENT_S = 60.0


class Items:
    """Samples that may take a while, or raise in another process than the one that made them."""

    def __init__(self, error: Exception | None = None, seconds: float = 0.0) -> None:
        self.error = error
        self.seconds = seconds
        self.made_by = os.getpid()
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked.append(index)
        if self.error is not None and os.getpid() != self.made_by:
            raise self.error
        time.sleep(self.seconds)
        return torch.zeros(8)


class Dies(Items):
    def __getitem__(self, index: int) -> torch.Tensor:
        os._exit(1)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        raise LookupError("it was asked")


def failure(dataset: Any, **fields: Any) -> str:
    return trial.failure(DataLoader(dataset, **fields), PATIENT_S)


def test_a_dataset_that_works_has_none_and_nothing_of_the_scripts_is_moved() -> None:
    dataset, state = Items(), torch.get_rng_state()
    assert failure(dataset, shuffle=True) == ""
    assert torch.equal(torch.get_rng_state(), state)
    assert dataset.asked == [], "it was asked in another process"


@pytest.mark.parametrize("error", [LookupError("no such row"), KeyError("no such row")])
def test_a_dataset_that_fails_in_a_worker_says_how(error: Exception) -> None:
    said = failure(Items(error))
    assert said.startswith(f"{type(error).__name__}: ")
    assert "no such row" in said
    assert "\n" not in said


def test_a_worker_that_dies_is_a_failure_and_a_slow_one_is_none() -> None:
    assert "exited unexpectedly" in failure(Dies())
    slow = DataLoader(Items(seconds=0.2))  # type: ignore[arg-type]
    assert trial.failure(slow, 0.01) == ""


@pytest.mark.parametrize("fields", [{"batch_size": None}, {"batch_sampler": [[0], [1]]}])
def test_it_is_tried_only_with_plain_batches(fields: dict[str, Any]) -> None:
    assert failure(Items(LookupError("it was asked")), **fields) == ""
    assert failure(Stream()) == ""


def test_it_is_tried_at_the_end_where_the_script_has_no_workers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.loaders._inside._clock = time.monotonic_ns  # type: ignore[union-attr]
    datasets = Items(LookupError("no such row")), Items()
    loaders = [DataLoader(dataset, num_workers=n) for n, dataset in enumerate(datasets)]  # type: ignore[arg-type]
    for loader in loaders:
        for _ in loader:
            pass
    monkeypatch.setattr(inside, "TRIAL_S", PATIENT_S)
    datasets[1].error = LookupError("its workers have shown that it works")
    rig.loaders.measure_hand_offs(PATIENT_S)
    without, with_workers = rig.loaders.hand_offs()
    assert (without.failure, with_workers.failure) == ("LookupError: no such row", "")
