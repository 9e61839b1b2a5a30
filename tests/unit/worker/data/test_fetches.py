from __future__ import annotations

import gc
import weakref
from collections import UserDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from dpdoctor.worker.data import chains
from dpdoctor.worker.data.fetches import ENTRY_NS, FIRST_LOOK, MOST_LOOK_SHARE, Fetched, WatchedFetcher, num_bytes
from dpdoctor.worker.data.look import Look
from dpdoctor.worker.facts.cpu import CoreQueue, Waits
from tests.builders.handclock import HandClock


class Rows:
    def __init__(self, clock: HandClock, transform: Callable[[Any], Any] | None = None) -> None:
        self.clock = clock
        self.transforms = [transform] if transform else []

    def __getitem__(self, index: int) -> Any:
        self.clock.tick(10)
        for transform in self.transforms:
            transform(index)
        return torch.full((2,), index)


class Watched:
    """A watched fetcher of batches, and what was noted of them."""

    def __init__(self, clock: HandClock, transform: Callable[[Any], Any] | None = None) -> None:
        def collate(items: Any) -> Any:
            clock.tick(7)
            return default_collate(items)

        self.dataset = Rows(clock, transform)
        self.inner = _MapDatasetFetcher(self.dataset, True, collate, False)
        look = Look(chains.find(self.dataset), clock)
        noted = self.noted = list[tuple[int, Fetched]]()
        self.fetcher = WatchedFetcher(self.inner, look, lambda *what: noted.append(what), clock, Waits())


def test_a_fetch_is_timed(clock: HandClock) -> None:
    watched = Watched(clock)
    assert watched.fetcher.fetch([1, 2]).tolist() == [[1, 1], [2, 2]]
    ((number, fetched),) = watched.noted
    assert (number, fetched.begin_ns, fetched.fetch_ns, fetched.collate_ns) == (0, 0, 27, 7)
    assert fetched.num_bytes == 4 * 8
    assert fetched.cpu_ns > 0
    assert fetched.num_items == 0


def test_to_ask_the_kernel_about_waits_is_no_part_of_a_fetch(clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def waited_ns(_: CoreQueue) -> int:
        clock.tick(10**9)
        return clock()

    monkeypatch.setattr(CoreQueue, "waited_ns", waited_ns)
    watched = Watched(clock)
    for _ in range(2):
        watched.fetcher.fetch([1, 2])
        clock.tick(10**9)
    assert [(fetched.fetch_ns, fetched.queued_ns) for _, fetched in watched.noted] == [(27, 0)] * 2
    assert watched.noted[1][1].gap_queued_ns > 0


def test_transforms_are_timed_as_often_as_the_cost_allows(clock: HandClock) -> None:
    takes_ns = int(ENTRY_NS / MOST_LOOK_SHARE / 4)
    watched = Watched(clock, lambda _: clock.tick(takes_ns))
    for _ in range(12):
        watched.fetcher.fetch([1, 2, 3])
    looked = {number: fetched for number, fetched in watched.noted if fetched.num_items}
    assert list(looked) == [FIRST_LOOK, FIRST_LOOK + 4, FIRST_LOOK + 8]
    for fetched in looked.values():
        assert (fetched.num_items, fetched.items_ns) == (3, 3 * (takes_ns + 10))
        assert fetched.transforms_ns == (3 * takes_ns,)
    assert type(watched.dataset.transforms) is list


def test_slow_transforms_are_timed_in_every_batch_but_the_first(clock: HandClock) -> None:
    watched = Watched(clock, lambda _: clock.tick(int(ENTRY_NS / MOST_LOOK_SHARE)))
    for _ in range(5):
        watched.fetcher.fetch([1, 2])
    assert [number for number, fetched in watched.noted if fetched.num_items] == [1, 2, 3, 4]


def test_a_chain_that_the_dataset_does_not_use_is_no_burden(clock: HandClock) -> None:
    watched = Watched(clock, lambda _: None)
    watched.dataset.transforms.clear()
    for _ in range(3):
        watched.fetcher.fetch([1])
    assert [fetched.transforms_ns for _, fetched in watched.noted] == [(), (0,), (0,)]


def test_a_fetch_that_raises_is_counted_and_nothing_stays_changed(clock: HandClock) -> None:
    def fail(index: int) -> None:
        if index == 5:
            raise LookupError("row 5")

    watched = Watched(clock, fail)
    watched.fetcher.fetch([1])
    with pytest.raises(LookupError, match="row 5"):
        watched.fetcher.fetch([5])
    assert type(watched.dataset.transforms) is list
    watched.fetcher.fetch([1])
    assert [number for number, _ in watched.noted] == [0, 2]


def test_the_rest_of_the_fetcher_is_there(clock: HandClock) -> None:
    watched = Watched(clock)
    assert watched.fetcher.dataset is watched.dataset
    with pytest.raises(AttributeError):
        _ = watched.fetcher.dataset_iter


def test_the_dataset_is_freed_with_its_fetcher(clock: HandClock) -> None:
    watched = Watched(clock, len)
    held = weakref.ref(watched.dataset)
    gc.disable()
    try:
        del watched
        assert held() is None
    finally:
        gc.enable()


Pair = namedtuple("Pair", "first second")
NINE = torch.zeros(9, dtype=torch.uint8)


class Strange(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise RuntimeError


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (NINE, 9),
        ([NINE, ("a", {"x": NINE, "y": 1})], 18),
        (Pair(NINE, NINE), 18),
        (UserDict(x=NINE), 9),
        ([NINE] * 100, 900),
        (["text"] * 100, 0),
        ([["text"] * 100, NINE], 9),
        ("text", 0),
        (object(), 0),
        (NINE.as_subclass(Strange), 0),
    ],
)
def test_bytes_of_a_batch(batch: Any, expected: int) -> None:
    assert num_bytes(batch) == expected
