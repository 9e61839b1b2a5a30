from __future__ import annotations

import functools
import gc
import pickle
import threading
import weakref
from collections import UserDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torchvision import transforms
from torchvision.transforms import v2

from dpdoctor.worker.data.fetches import (
    ENTRY_NS,
    FIRST_LOOK,
    MOST_LOOK_SHARE,
    MOST_OBJECTS,
    Fetched,
    Look,
    WatchedFetcher,
    find_chains,
    num_bytes,
)
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
        look = Look(find_chains(self.dataset), clock)
        noted = self.noted = list[tuple[int, Fetched]]()
        self.fetcher = WatchedFetcher(self.inner, look, lambda *what: noted.append(what), clock, Waits(clock))


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


class Compose:
    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, item: Any) -> Any:
        for transform in self.transforms:
            item = transform(item)
        return item


class Holder:
    def __init__(self, transform: Any) -> None:
        self.transform = transform


def takes(clock: HandClock, ns: int) -> Callable[[Any], Any]:
    def transform(item: Any) -> Any:
        clock.tick(ns)
        return item + ns

    return transform


def look_at(transform: Any, clock: HandClock) -> Look:
    return Look(find_chains(Holder(transform)), clock)


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("compose", [Compose, v2.Compose])
def test_each_entry_has_its_time(clock: HandClock, kind: Any, compose: Any) -> None:
    chain = compose(kind([takes(clock, 3), takes(clock, 20)]))
    look = look_at(chain, clock)
    look.open()
    assert [chain(0), chain(0)] == [23, 23]
    look.close()
    assert look.totals_ns == [6, 40]
    assert chain(0) == 23
    assert look.totals_ns == [6, 40]


def test_every_look_begins_at_nothing(clock: HandClock) -> None:
    chain = Compose([takes(clock, 3)])
    look = look_at(chain, clock)
    for _ in range(2):
        look.open()
        chain(0)
        look.close()
        assert look.totals_ns == [3]


def test_a_chain_in_a_chain_is_charged_once(clock: HandClock) -> None:
    def outer(item: Any) -> Any:
        clock.tick(1)
        return inner(item)

    inner = Compose([takes(clock, 5), takes(clock, 7)])
    outer.inner = inner  # type: ignore[attr-defined]
    data = Holder(Compose([outer, inner, takes(clock, 100)]))
    look = Look(find_chains(data), clock)
    look.open()
    data.transform(0)
    look.close()
    assert look.totals_ns == [1, 0, 100, 10, 14]


def test_the_script_sees_its_own_list(clock: HandClock) -> None:
    entries = [takes(clock, 1), len]
    chain = Compose(entries)
    look = look_at(chain, clock)
    look.open()
    during = chain.transforms
    assert isinstance(during, list)
    assert repr(during) == repr(entries)
    assert during == entries
    assert all(one is other for one, other in zip(during, entries, strict=True))
    assert during[1] is len
    look.close()
    assert chain.transforms is entries


def test_what_is_pickled_meanwhile_is_an_ordinary_list(clock: HandClock) -> None:
    for kind in (list, tuple):
        chain = Compose(kind([len, abs]))
        look = look_at(chain, clock)
        look.open()
        copy = pickle.loads(pickle.dumps(chain)).transforms
        look.close()
        assert type(copy) is kind
        assert copy == chain.transforms


def test_changes_that_the_script_makes_meanwhile_remain(clock: HandClock) -> None:
    entries: list[Any] = [takes(clock, 1)]
    chain = Compose(entries)
    look = look_at(chain, clock)
    look.open()
    chain.transforms.append(takes(clock, 2))
    chain(0)
    look.close()
    assert chain.transforms is entries
    assert len(entries) == 2
    assert look.totals_ns == [1]
    look.open()
    assert chain.transforms is entries, "not the chain that was found any more"
    chain.transforms = [len]
    look.close()
    assert chain.transforms == [len]


def test_a_list_that_is_replaced_meanwhile_stays_replaced(clock: HandClock) -> None:
    chain = Compose([takes(clock, 1)])
    look = look_at(chain, clock)
    look.open()
    chain.transforms = [len]
    look.close()
    assert chain.transforms == [len]


def test_other_threads_are_not_timed(clock: HandClock) -> None:
    chain = Compose([takes(clock, 3)])
    look = look_at(chain, clock)
    look.open()
    thread = threading.Thread(target=chain, args=(0,))
    thread.start()
    thread.join()
    look.close()
    assert look.totals_ns == [0]


def test_a_loop_that_is_left_open_is_not_charged_to_the_next_look(clock: HandClock) -> None:
    chain = Compose([takes(clock, 3), takes(clock, 4)])
    look = look_at(chain, clock)
    look.open()
    left = iter(chain.transforms)
    next(left)
    look.close()
    clock.tick(1000)
    look.open()
    next(left)
    look.close()
    assert look.totals_ns == [0, 0]


class Items(Dataset[Any]):
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __len__(self) -> int:
        return 4


def negate(item: Any) -> Any:
    return -item


def names(dataset: Any) -> list[list[str]]:
    return [chain.names() for chain in find_chains(dataset)]


@pytest.mark.parametrize(
    "compose",
    [
        lambda: transforms.Compose([transforms.ToTensor(), negate]),
        lambda: v2.Compose([transforms.ToTensor(), negate]),
        lambda: [transforms.ToTensor(), negate],
        lambda: (transforms.ToTensor(), negate),
        lambda: {"train": transforms.Compose([transforms.ToTensor(), negate])},
        lambda: transforms.RandomApply([transforms.ToTensor(), negate]),
    ],
)
def test_lists_of_callables_are_chains(compose: Any) -> None:
    assert names(Items(transform=compose())) == [["ToTensor", "negate"]]


@pytest.mark.parametrize(
    "within", [lambda d: Subset(d, [0]), lambda d: ConcatDataset([d]), lambda d: Items(inner=Subset(d, [0]))]
)
def test_datasets_inside_datasets_are_searched(within: Any) -> None:
    assert names(within(Items(transform=[negate], data=torch.zeros(4)))) == [["negate"]]


def test_a_chain_in_a_chain_is_found_after_it() -> None:
    inner = transforms.Compose([negate])
    assert names(Items(transform=transforms.Compose([inner, negate]))) == [["Compose", "negate"], ["negate"]]


@pytest.mark.parametrize(
    "value",
    [[], [1, 2], ["a", negate], [int, str], [negate] * 100, torch.zeros(3), nn.Sequential(nn.ReLU()), len, Items],
)
def test_what_is_no_chain(value: Any) -> None:
    assert names(Items(value=value)) == []


def test_entries_are_called_by_their_class_or_function() -> None:
    entries = [negate, functools.partial(negate), transforms.ToTensor(), torch.neg, lambda x: x, {}.get]
    assert names(Items(value=entries)) == [["negate", "negate", "ToTensor", "neg", "<lambda>", "get"]]


def test_no_code_of_the_scripts_runs() -> None:
    class Touchy:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> None: ...

        @property
        def transforms(self) -> Any:
            raise AssertionError

    assert names(Items(first=Touchy(), rest=[Touchy()])) == [["Touchy"]]


def test_a_dataset_that_holds_itself_and_thousands_of_things_is_searched_in_part() -> None:
    data = Items(many={number: Items() for number in range(10_000)}, transform=[negate])
    data.itself = data  # type: ignore[attr-defined]
    node = data
    for _ in range(1000):
        node.next = Items(transform=[negate])  # type: ignore[attr-defined]
        node = node.next  # type: ignore[attr-defined]
    assert 1 < len(find_chains(data)) <= MOST_OBJECTS + 1


def test_a_chain_that_changed_is_not_held_any_more() -> None:
    data = Items(transform=[negate, negate])
    (chain,) = find_chains(data)
    assert chain.held() is data.transform  # type: ignore[attr-defined]
    data.transform = [negate, len]  # type: ignore[attr-defined]
    assert chain.held() is None
    del data.transform  # type: ignore[attr-defined]
    assert chain.held() is None
