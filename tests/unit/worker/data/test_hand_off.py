from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections import UserDict, namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from dpdoctor.worker.data import batch_records, hand_off
from dpdoctor.worker.data.hand_off import Specimen, describe, failure_in_worker, measure_hand_off
from tests.builders.rig import Rig

# The machine may be busy with other tests.
PATIENT_S = 60.0


class Alike:
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


@pytest.mark.measured
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_moving_a_batch_is_measured(rig: Rig, workers: int) -> None:
    rig.loaders._inside._clock = time.monotonic_ns  # type: ignore[union-attr]
    train(DataLoader(Alike({"x": torch.zeros(16), "y": 1}), batch_size=4, num_workers=workers))  # type: ignore[arg-type]
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


@pytest.mark.measured
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_each_loader_that_trained_has_its_cost(rig: Rig) -> None:
    rig.loaders._inside._clock = time.monotonic_ns  # type: ignore[union-attr]
    known, unknown = Alike(torch.zeros(2)), Alike(object())
    train(DataLoader(known, batch_size=2), DataLoader(unknown, batch_size=4, collate_fn=list), DataLoader(known))  # type: ignore[arg-type]
    with torch.no_grad():
        train(DataLoader(known, batch_size=8))  # type: ignore[arg-type]
    rig.loaders.measure_hand_offs(PATIENT_S)
    assert [cost.loader for cost in rig.loaders.hand_offs()] == [0, 2]


@pytest.mark.measured
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_takes_too_long_is_left_unknown() -> None:
    specimen = Specimen(1, shared=False, pin_memory=False)
    assert measure_hand_off(0, specimen, time.monotonic_ns, 0.0) is None


class DiesSending(list[Any]):
    def __iter__(self) -> Any:
        raise MemoryError


def test_a_daemonic_process_starts_none_and_leaves_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    assert measure_hand_off(0, Specimen([1], shared=False, pin_memory=False), time.monotonic_ns, PATIENT_S) is None


@pytest.mark.measured
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_worker_that_fails_leaves_it_unknown() -> None:
    specimen = Specimen(DiesSending(), shared=False, pin_memory=False)
    assert measure_hand_off(0, specimen, time.monotonic_ns, PATIENT_S) is None


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
    return failure_in_worker(DataLoader(dataset, **fields), PATIENT_S)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_dataset_that_works_has_none_and_nothing_of_the_scripts_is_moved() -> None:
    dataset, state = Items(), torch.get_rng_state()
    assert failure(dataset, shuffle=True) == ""
    assert torch.equal(torch.get_rng_state(), state)
    assert dataset.asked == [], "it was asked in another process"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("error", [LookupError("no such row"), KeyError("no such row")])
def test_a_dataset_that_fails_in_a_worker_says_how(error: Exception) -> None:
    said = failure(Items(error))
    assert said.startswith(f"{type(error).__name__}: ")
    assert "no such row" in said
    assert "\n" not in said


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_worker_that_dies_is_a_failure_and_a_slow_one_is_none() -> None:
    assert "exited unexpectedly" in failure(Dies())
    slow = DataLoader(Items(seconds=0.2))  # type: ignore[arg-type]
    assert failure_in_worker(slow, 0.01) == ""


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("fields", [{"batch_size": None}, {"batch_sampler": [[0], [1]]}])
def test_it_is_tried_only_with_plain_batches(fields: dict[str, Any]) -> None:
    assert failure(Items(LookupError("it was asked")), **fields) == ""
    assert failure(Stream()) == ""


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_it_is_tried_at_the_end_where_the_script_has_no_workers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.loaders._inside._clock = time.monotonic_ns  # type: ignore[union-attr]
    datasets = Items(LookupError("no such row")), Items()
    loaders = [DataLoader(dataset, num_workers=n) for n, dataset in enumerate(datasets)]  # type: ignore[arg-type]
    for loader in loaders:
        for _ in loader:
            pass
    monkeypatch.setattr(batch_records, "TRIAL_S", PATIENT_S)
    datasets[1].error = LookupError("its workers have shown that it works")
    rig.loaders.measure_hand_offs(PATIENT_S)
    without, with_workers = rig.loaders.hand_offs()
    assert (without.failure, with_workers.failure) == ("LookupError: no such row", "")


Pair = namedtuple("Pair", "first second")


def iterator(**options: Any) -> Any:
    return iter(DataLoader([0], **options))  # type: ignore[arg-type]


def made(batch: Any) -> Any:
    specimen = describe(batch, iterator())
    return specimen and specimen.make()


@pytest.mark.parametrize("batch", [3, "text", None, [1.5, (b"x", True)], {"a": [1], 2: "b"}, [], ()])
def test_what_is_not_a_tensor_is_kept(batch: Any) -> None:
    assert made(batch) == batch


def test_tensors_are_made_anew_in_shape_and_type() -> None:
    one, two = torch.ones(2, 3, dtype=torch.float16), torch.ones((), dtype=torch.int64)
    first, rest = made([one, {"x": two}])
    assert (first.shape, first.dtype, rest["x"].shape, rest["x"].dtype) == (one.shape, one.dtype, two.shape, two.dtype)
    assert not first.any()


def test_containers_like_tuples_and_dicts_become_these() -> None:
    assert made(Pair(1, 2)) == (1, 2)
    assert made(UserDict(a=1)) == {"a": 1}


@pytest.mark.parametrize("value", [object(), {1}, torch.zeros(2).to_sparse(), torch.nn.Parameter(torch.zeros(2))])
def test_other_things_are_not_described(value: Any) -> None:
    assert describe([1, value], iterator()) is None


def test_tensors_that_default_collate_makes_in_workers_are_shared() -> None:
    ours, theirs = describe(torch.zeros(2), iterator()), describe(torch.zeros(2), iterator(collate_fn=list))
    assert ours is not None
    assert theirs is not None
    assert (ours.make().is_shared(), theirs.make().is_shared()) == (True, False)
