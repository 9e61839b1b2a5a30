"""Copies to a device; the one that every machine has and that is not the host is torch's `meta`."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from dpdoctor.worker.facts.copies import DeviceCopies

FOUR = torch.ones(4)
THERE = torch.ones(4, device="meta")


def counted(work: Callable[[], object], *, has_device: bool = True) -> int | None:
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
    assert counted(work) == num_bytes


def test_another_threads_copies_are_not_the_steps() -> None:
    def work() -> None:
        thread = threading.Thread(target=lambda: FOUR.to("meta"))
        thread.start()
        thread.join()

    assert counted(work) == 0


def test_without_a_device_nothing_is_counted() -> None:
    assert counted(lambda: FOUR.to("meta"), has_device=False) is None


def test_nothing_is_left_of_it_in_torch() -> None:
    before = {name: getattr(torch.Tensor, name) for name in ("to", "cuda", "copy_")}
    counted(lambda: None)
    assert {name: getattr(torch.Tensor, name) for name in before} == before
