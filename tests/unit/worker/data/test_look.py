from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from torchvision.transforms import v2

from dpdoctor.worker.data import chains
from dpdoctor.worker.data.look import Look
from tests.builders.handclock import HandClock


class Compose:
    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, item: Any) -> Any:
        for transform in self.transforms:
            item = transform(item)
        return item


class Dataset:
    def __init__(self, transform: Any) -> None:
        self.transform = transform


def takes(clock: HandClock, ns: int) -> Callable[[Any], Any]:
    def transform(item: Any) -> Any:
        clock.tick(ns)
        return item + ns

    return transform


def look_at(transform: Any, clock: HandClock) -> Look:
    return Look(chains.find(Dataset(transform)), clock)


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
    data = Dataset(Compose([outer, inner, takes(clock, 100)]))
    look = Look(chains.find(data), clock)
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
