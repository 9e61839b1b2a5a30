from __future__ import annotations

import os

import pytest

from dpdoctor.worker.data.fetches import UNKNOWN, Fetched
from dpdoctor.worker.data.workers import Ring


def fetched(number: int) -> Fetched:
    return Fetched(
        begin_ns=2**60 + number,
        fetch_ns=3,
        cpu_ns=4,
        collate_ns=5,
        num_bytes=2**40,
        num_items=7,
        items_ns=8,
        transforms_ns=(9, number),
    )


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_a_child_writes_is_read_here() -> None:
    ring = Ring(num_workers=2, depth=3, num_transforms=2)
    pid = os.fork()
    if pid == 0:
        for number in range(3):
            ring.write(1, 1, number, fetched(number))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert [ring.read(1, 1, number) for number in range(3)] == [fetched(number) for number in range(3)]
    assert ring.read(0, 1, 0) is UNKNOWN


def test_what_is_not_there_is_unknown() -> None:
    ring = Ring(num_workers=2, depth=2, num_transforms=2)
    assert ring.read(0, 1, 0) is UNKNOWN
    for number in range(3):
        ring.write(0, 1, number, fetched(number))
    assert ring.read(0, 1, 0) is UNKNOWN, "another took its place"
    assert ring.read(0, 2, 1) is UNKNOWN, "of another iteration"
    assert ring.read(1, 1, 1) is UNKNOWN, "of another worker"
    assert ring.read(0, 1, 2) == fetched(2)


def test_a_fetch_that_was_not_looked_into_leaves_no_times_of_the_one_before() -> None:
    ring = Ring(num_workers=1, depth=1, num_transforms=2)
    ring.write(0, 1, 0, fetched(0))
    ring.write(0, 1, 1, Fetched(begin_ns=1, fetch_ns=2))
    assert ring.read(0, 1, 1) == Fetched(begin_ns=1, fetch_ns=2, transforms_ns=(0, 0))
