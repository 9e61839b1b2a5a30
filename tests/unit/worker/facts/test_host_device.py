from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from operator import methodcaller
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from dpdoctor.worker.facts import host_device
from dpdoctor.worker.facts.host_device import DeviceCopies, HostSyncs


def patched() -> list[Any]:
    """Return what calls of torch lead to this package: nothing, unless something is counted."""
    owners = (torch, torch.Tensor, torch.cuda, torch.cuda.Event, torch.cuda.Stream)
    functions = [value for owner in owners for value in vars(owner).values() if isinstance(value, FunctionType)]
    return [function for function in functions if function.__code__.co_filename == host_device.__file__]


@pytest.fixture
def found() -> Iterator[Callable[..., list[tuple[str, int]]]]:
    """Give a function that returns what is counted, as (call, count), while another one runs."""

    def count(work: Callable[[], Any]) -> list[tuple[str, int]]:
        counted = HostSyncs()
        counted.start()
        assert patched()
        try:
            work()
        finally:
            counted.stop()
        return [(sync.call, sync.count) for sync in counted.found()]

    yield count
    assert not patched()


VALUE, VECTOR = torch.tensor(2.0), torch.tensor([1.0, -1.0, 0.0])


@pytest.mark.parametrize(
    ("work", "call"),
    [
        (partial(methodcaller("item"), VALUE), "item"),
        (partial(methodcaller("tolist"), VECTOR), "tolist"),
        (partial(methodcaller("cpu"), VECTOR), "cpu"),
        (partial(methodcaller("numpy"), VECTOR), "numpy"),
        (lambda: np.asarray(VECTOR), "numpy"),
        (lambda: bool(VALUE > 1), "bool"),
        (lambda: float(VALUE), "float"),
        (lambda: int(VALUE), "int"),
        (lambda: [0, 1, 2][VALUE.long()], "index"),
        (lambda: f"{VALUE:.3f}", "format"),
        (lambda: str(VALUE), "repr"),
        (lambda: str([VALUE]), "repr"),
        (partial(methodcaller("nonzero"), VECTOR), "nonzero"),
        (lambda: torch.nonzero(input=VECTOR), "nonzero"),
        (lambda: VECTOR.masked_select(VECTOR > 0), "masked_select"),
        (lambda: VECTOR[VECTOR > 0], "[mask]"),
        (lambda: VECTOR.cpu().numpy(), "cpu"),
        (lambda: 1.0 in VECTOR, "item"),
    ],
)
def test_each_call_that_asks_for_values_counts_once(found, work, call) -> None:
    assert found(work) == [(call, 1)]
    assert found(lambda: [work() for _ in range(3)]) == [(call, 3)]


def test_what_asks_for_no_value_does_not_count(found) -> None:
    def work() -> None:
        VECTOR[0], VECTOR[torch.tensor([0, 2])], VECTOR[:2]
        VECTOR.to("cpu"), VECTOR.float(), len(VECTOR), VECTOR.shape, VECTOR + 1
        hash(VECTOR)

    assert found(work) == []


def test_it_is_counted_at_its_line() -> None:
    def two_lines() -> int:
        VALUE.item()
        VALUE.item()
        return sys._getframe().f_lineno

    counted = HostSyncs()
    counted.start()
    lines = [two_lines() for _ in range(2)]
    counted.stop()
    VALUE.item()
    expected = [(f"{__file__}:{lines[0] - back}", 2) for back in (2, 1)]
    assert [(sync.line, sync.count) for sync in counted.found()] == expected


def test_a_line_is_known_by_its_text_as_well() -> None:
    counted = HostSyncs()
    counted.start()
    VALUE.item()  # API_TOKEN=hunter2
    counted.stop()
    assert [sync.code for sync in counted.found()] == ["VALUE.item()  # API_TOKEN=<redacted>"]


def test_what_torch_asks_for_counts_once_for_each_call_into_it(found) -> None:
    model = nn.Linear(3, 1)
    model(VECTOR).backward()

    def clip_twice() -> None:
        for _ in range(2):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)

    assert found(clip_twice) == [("bool", 2)]

    def several() -> None:
        torch.testing.assert_close(VECTOR, VECTOR.clone())

    assert sum(count for _, count in found(several)) == 1


def test_tensors_stay_no_sequences(found) -> None:
    class Own(torch.Tensor):
        pass

    def gather() -> None:
        for value in (VALUE, nn.Parameter(VALUE, requires_grad=False), VALUE.as_subclass(Own)):
            assert torch.tensor([value]).tolist() == [2.0]
        assert VECTOR[VECTOR > 0].tolist() == [1.0]

    assert ("[mask]", 1) in found(gather)
    gather()


def test_what_lies_on_the_host_anyway_does_not_count(found) -> None:
    class Points(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.full((3,), torch.rand(1).item())

    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())

    def train() -> None:
        for x in DataLoader(Points(), batch_size=2, shuffle=True):
            model(x).sum().backward()
            optimizer.step()

    assert found(train) == []


def test_a_closure_that_an_optimizer_calls_is_the_scripts(found) -> None:
    model = nn.Linear(3, 1)

    def closure() -> float:
        loss = model(VECTOR).sum()
        loss.backward()
        return loss.item()

    assert found(lambda: torch.optim.SGD(model.parameters(), lr=0.1).step(closure)) == [("item", 1)]


def test_a_tensor_that_was_moved_counts_once_and_a_later_one_again(found) -> None:
    def work() -> None:
        VECTOR.cpu().tolist()
        VALUE.item()

    assert found(work) == [("cpu", 1), ("item", 1)]


def test_an_exception_leaves_it_counting(found) -> None:
    def work() -> None:
        with pytest.raises(RuntimeError):
            VECTOR.item()
        VALUE.tolist()

    assert found(work) == [("item", 1), ("tolist", 1)]


def test_what_a_grad_scaler_asks_for_itself_is_known_from_what_the_script_asks(found) -> None:
    model = nn.Linear(3, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")

    def train() -> None:
        for _ in range(2):
            loss = model(VECTOR).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            loss.item()

    assert found(train) == [("GradScaler.step", 2), ("item", 2)]


# The device that every machine has and that is not the host is torch's `meta`.
FOUR = torch.ones(4)
THERE = torch.ones(4, device="meta")


def copied(work: Callable[[], object], *, has_device: bool = True) -> int | None:
    copies = DeviceCopies(has_device=has_device)
    copies.start()
    try:
        work()
    finally:
        copies.stop()
    FOUR.to("meta")
    return copies.num_bytes


@pytest.mark.parametrize(
    ("work", "num_bytes"),
    [
        (lambda: FOUR.to("meta"), 16),
        (lambda: [FOUR.to("meta") for _ in range(3)], 48),
        (lambda: FOUR.double().to(device="meta"), 32),
        (lambda: THERE.clone().copy_(FOUR), 16),
        (lambda: THERE.clone().copy_(other=FOUR), 16),
        (lambda: nn.Linear(3, 1).to("meta"), 16),
        (lambda: FOUR.to(torch.float64), 0),
        (lambda: FOUR.clone().copy_(FOUR), 0),
        (lambda: THERE.to("meta"), 0),
        (lambda: THERE + THERE, 0),
    ],
)
def test_bytes_that_leave_the_host(work: Callable[[], object], num_bytes: int) -> None:
    assert copied(work) == num_bytes


def test_another_threads_copies_are_not_the_steps() -> None:
    def work() -> None:
        thread = threading.Thread(target=lambda: FOUR.to("meta"))
        thread.start()
        thread.join()

    assert copied(work) == 0


def test_without_a_device_no_bytes_are_counted() -> None:
    assert copied(lambda: FOUR.to("meta"), has_device=False) is None


def test_nothing_is_left_of_it_in_torch() -> None:
    before = {name: getattr(torch.Tensor, name) for name in ("to", "cuda", "copy_")}
    copied(lambda: None)
    assert {name: getattr(torch.Tensor, name) for name in before} == before
