"""The script's dataset in a worker: what fetching and handing over cost each other."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from dpdoctor.worker.data import trial
from dpdoctor.worker.data.trial import Trial
from tests.measuring import measured
from tests.unit.worker.rig import Rig

pytestmark = [measured, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]
# Workers time their fetches only while their loop is watched.
timed = pytest.mark.usefixtures("rig")

# The machine may be busy with other tests.
PATIENT_S = 60.0


class Items:
    """Samples that take 20 ms of computing in Python, or of sleeping."""

    def __init__(self, *, computes: bool, error: Exception | None = None) -> None:
        self.computes = computes
        self.error = error
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked.append(index)
        if self.error is not None:
            raise self.error
        end = time.thread_time() + 0.02
        if not self.computes:
            time.sleep(0.02)
        while self.computes and time.thread_time() < end:
            pass
        return torch.zeros(8)


def tried(dataset: Any, **fields: Any) -> Trial | None:
    return trial.measure(DataLoader(dataset, **fields), time.monotonic_ns, PATIENT_S)


@timed
def test_who_holds_the_lock_is_slow_to_hand_over() -> None:
    computes, sleeps = tried(Items(computes=True)), tried(Items(computes=False))
    assert computes is not None
    assert sleeps is not None
    assert computes.failure == sleeps.failure == ""
    # The lock is let go of every 5 ms (sys.getswitchinterval), and handing over takes it several times.
    assert computes.delayed_ns > 5_000_000 > sleeps.delayed_ns


class SlowToReceive:
    """Takes 50 ms to be built anew from its bytes, in the training process, and no time to be made."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> SlowToReceive:
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        time.sleep(0.05)

    def __getstate__(self) -> dict[str, Any]:
        return {"any": "thing"}


@timed
def test_a_batch_that_waits_for_the_one_before_it_is_not_slow_to_hand_over() -> None:
    found = tried(SlowToReceive(), collate_fn=list)
    assert found is not None
    assert found.failure == ""
    assert found.delayed_ns < 25_000_000


@timed
def test_nothing_of_the_scripts_is_moved() -> None:
    dataset = Items(computes=False)
    loader = DataLoader(dataset, shuffle=True)  # type: ignore[arg-type]
    state = torch.get_rng_state()
    assert trial.measure(loader, time.monotonic_ns, PATIENT_S) is not None
    assert torch.equal(torch.get_rng_state(), state)
    assert dataset.asked == [], "it was asked in another process"


@timed
def test_a_dataset_that_fails_in_a_worker_says_how() -> None:
    found = tried(Items(computes=False, error=LookupError("no such row")))
    assert found == Trial(failure="LookupError: no such row")


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(100))


@timed
@pytest.mark.parametrize("fields", [{"batch_size": None}, {"batch_sampler": [[0], [1]]}])
def test_indices_are_made_up_only_for_plain_batches(fields: dict[str, Any]) -> None:
    assert tried(Items(computes=False), **fields) is None
    assert tried(Stream()) is None


class Dies(Items):
    def __getitem__(self, index: int) -> torch.Tensor:
        os._exit(1)


@timed
def test_a_worker_that_dies_is_a_failure_and_a_slow_one_is_none() -> None:
    died = tried(Dies(computes=False))
    assert died is not None
    assert "exited unexpectedly" in died.failure
    slow = DataLoader(Items(computes=False))  # type: ignore[arg-type]
    assert trial.measure(slow, time.monotonic_ns, 0.01) is None


def test_fetches_that_nobody_timed_say_nothing() -> None:
    assert tried(Items(computes=False)) is None


@timed
def test_too_few_batches_in_time_say_nothing() -> None:
    assert trial.measure(DataLoader(Items(computes=False)), time.monotonic_ns, 0.0) is None  # type: ignore[arg-type]


def test_it_is_tried_at_the_end_where_the_script_has_no_workers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.loaders._inside._clock = time.monotonic_ns  # type: ignore[union-attr]
    loaders = [DataLoader(Items(computes=True), num_workers=workers) for workers in (0, 1)]  # type: ignore[arg-type]
    for loader in loaders:
        for _ in loader:
            pass
    monkeypatch.setattr(trial, "LIMIT_S", PATIENT_S)
    rig.loaders.measure_hand_offs(PATIENT_S)
    without, with_workers = rig.loaders.hand_offs()
    assert without.delayed_ns > 5_000_000
    assert with_workers.delayed_ns == 0
