"""Batches that were fetched, and the forward passes that take them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpdoctor.worker.timing.batches import LEAST_GONE, Batch, Pending, identity, live_storages, storages
from dpdoctor.worker.timing.tally import UNCOUNTED, UNSURE, Tally

TRAIN, OTHER = 0, 1


def test_storages_are_those_of_views_too_and_of_tensors_in_objects() -> None:
    x, y = torch.ones(4, 2), torch.ones(4)
    graph = SimpleNamespace(store=SimpleNamespace(x=x), names=["a"])
    assert storages({"x": [x[1:], (y,)], "path": "a"}) == storages(graph) | storages(y)
    assert len(storages([x, y, 1, None])) == 2
    assert storages([torch.empty(0), torch.ones(2).to_sparse(), torch.empty(3, device="meta")]) == set()
    loop: list[object] = [x]
    loop.append(loop)
    assert storages(loop) == storages(x)


def test_an_identity_is_a_tensors_own_until_it_is_changed() -> None:
    x = torch.ones(4, 2)
    before = identity(x)
    assert before == identity(x) == identity(x[:]) != identity(x[:2])
    assert identity(x[:2]) != identity(x[2:])
    x.add_(1)
    assert identity(x) != before
    free = identity(torch.ones(4, 2))
    assert all(identity(torch.ones(4, 2)) != free for _ in range(9)), "memory that was freed lies there once more"
    with torch.inference_mode():
        assert identity(own := torch.ones(2)) == identity(own)
    for odd in (x.to_sparse(), torch.nested.nested_tensor([x, x[1:]], layout=torch.jagged)):
        assert identity(odd) == identity(odd) != before


def test_a_reference_tells_when_memory_is_free_that_a_view_may_hold() -> None:
    x = torch.ones(4, 2)
    (reference,) = live_storages(x).values()
    view = x.detach()[1:]
    del x
    assert not reference.expired()
    del view
    assert reference.expired()


def test_tensors_that_are_near_are_found_in_whatever_is_large() -> None:
    x = torch.ones(2)
    assert storages([list(range(10_000_000)), x]) == storages(x)
    assert storages(SimpleNamespace(whole=[torch.ones(1) for _ in range(100_000)], x=x)) >= storages(x)


@pytest.mark.parametrize("called_with", [[2, 3], [3, 2], [1, 3]])
def test_a_forward_takes_both_batches_that_it_is_called_with(called_with: list[int]) -> None:
    pending = Pending()
    for place in (1, 2, 3):
        pending.add(Batch(loader=TRAIN, size=4, storages={place}))
    taken = pending.take(8, called_with, is_first=True)
    assert sorted(storage for batch in taken for storage in batch.storages) == sorted(called_with)
    assert (pending.passed[TRAIN], pending.has_live) == (1, False)


def test_a_forward_takes_the_batch_that_it_is_called_with_and_those_before_it_were_passed_over() -> None:
    pending = Pending()
    for place in (1, 2, 3):
        pending.add(Batch(loader=TRAIN, size=4, storages={place}))
    (taken,) = pending.take(4, {2, 9}, is_first=True)
    assert (taken.storages, pending.passed[TRAIN], pending.num_known) == ({2}, 1, 1)
    assert [batch.storages for batch in pending.take(4, {3}, is_first=False)] == [{3}]
    assert pending.take(4, {1, 2, 3}, is_first=True) == []


def test_memory_that_was_used_again_is_the_later_batchs() -> None:
    pending = Pending()
    for size in (4, 5):
        pending.add(Batch(loader=TRAIN, size=size, storages={1}))
    assert [batch.size for batch in pending.take(0, {1}, is_first=True)] == [5]


class Memory:
    """Stands for a reference to a storage."""

    def __init__(self) -> None:
        self.is_free = False

    def expired(self) -> bool:
        return self.is_free


def test_a_copy_stands_for_its_batch_as_long_as_it_is_there() -> None:
    pending, copy, original = Pending(), Memory(), Memory()
    for place in (1, 2):
        pending.add(Batch(loader=TRAIN, size=4, storages={place}, references={2: original} if place == 2 else {}))
    pending.copied({2}, {7: copy})
    pending.copied({8}, {9: copy})
    assert [batch.storages for batch in pending.take(4, {7, 9}, is_first=True)] == [{2, 7}]
    pending.add(Batch(loader=TRAIN, size=4, storages={3}))
    assert pending.take(4, {7, 2}, is_first=True) == []
    assert [batch.storages for batch in pending.gone({7})] == [{2, 7}]
    copy.is_free = original.is_free = True
    assert pending.gone({7, 2}) == []
    assert [batch.storages for batch in pending.take(4, {7, 2}, is_first=True)] == [{3}]


def test_batches_whose_memory_is_free_are_not_remembered() -> None:
    pending, memories = Pending(), []
    for place in range(10 * LEAST_GONE):
        memories.append(Memory())
        pending.add(Batch(loader=TRAIN, size=4, storages={place}, references={place: memories[-1]}))
        pending.take(4, {place}, is_first=True)
        memories[-1].is_free = place >= LEAST_GONE
    assert len(pending._gone) <= 4 * LEAST_GONE
    assert [pending.gone({place})[0].storages for place in range(LEAST_GONE)] == [{n} for n in range(LEAST_GONE)]


@pytest.mark.parametrize(
    ("sizes", "rows", "taken"),
    [([4], 99, [4]), ([4, 4], 8, [4, 4]), ([3, 4, 4], 4, [4]), ([4, 4], 4, [4]), ([4, 4], 35, [4, 4])],
)
def test_where_the_tensors_are_others_the_numbers_tell(sizes: list[int], rows: int, taken: list[int]) -> None:
    pending = Pending()
    for size in sizes:
        pending.add(Batch(loader=TRAIN, size=size))
    pending.add(Batch(loader=OTHER, size=7))
    pending.add(Batch(loader=OTHER, size=8, for_training=False))
    assert pending.take(rows, (), is_first=False) == []
    assert [batch.size for batch in pending.take(rows, (), is_first=True)] == [*taken, 7]
    assert pending.num_unsure == (rows == 35)


def test_of_what_nobody_trains_on_little_is_remembered() -> None:
    pending = Pending()
    for number in range(1000):
        pending.add(Batch(loader=TRAIN, size=4, storages={number}, for_training=False))
    pending.add(Batch(loader=TRAIN, size=4, storages={1000}))
    assert len(pending.take(4, set(range(998)), is_first=False)) == 0
    assert [batch.storages for batch in pending.take(4, (), is_first=True)] == [{1000}]


STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "sizes": st.lists(st.integers(1, 3).map(lambda size: 4 * size), min_size=1, max_size=4),
            "skipped": st.integers(0, 2),
            "evaluated": st.integers(0, 5),
        }
    ),
    min_size=1,
    max_size=10,
)


class Script:
    """A training loop: it fetches some batches ahead, skips, accumulates, and looks at batches with an EMA copy."""

    def __init__(self, ahead: int, *, copies: bool) -> None:
        self.tally = Tally()
        self._ahead = ahead
        self._copies = copies
        self._place = 0
        self._queue: list[tuple[int, set[int]]] = []

    def _fetch(self, size: int, loader: int = TRAIN, *, for_training: bool = True) -> tuple[int, set[int]]:
        self._place += 1
        place = {self._place}
        self.tally.fetched(loader, size, storages=place, for_training=for_training)
        return size, set() if self._copies else place

    def next(self, sizes: list[int]) -> tuple[int, set[int]]:
        """Return the next batch of a loader whose batches have these sizes."""
        while sizes and len(self._queue) <= self._ahead:
            self._queue.append(self._fetch(sizes.pop(0)))
        return self._queue.pop(0)

    def step(self, sizes: list[int], micro_batches: int, skipped: int, evaluated: int) -> tuple[int, int]:
        """Return the samples of one step as the script knows them, and as they were counted."""
        trained = 0
        for _ in range(micro_batches):
            for _ in range(skipped):
                self.next(sizes)
            size, places = self.next(sizes)
            trained += size
            self.tally.trained(size, storages=places)
            self.tally.backward()
        for _ in range(evaluated):
            self._fetch(100, OTHER, for_training=False)
        counted = self.tally.lap()
        assert counted.micro_batches == micro_batches
        return trained, counted.samples_drawn


@given(STEPS, st.integers(0, 2))
def test_samples_are_those_that_the_script_trained_on(steps: list[dict[str, object]], ahead: int) -> None:
    script = Script(ahead, copies=False)
    plan = [(len(step["sizes"]), step["skipped"], step["evaluated"]) for step in steps]  # type: ignore[arg-type]
    sizes = [4 + number % 5 for number in range(sum(micro * (1 + skipped) for micro, skipped, _ in plan))]  # type: ignore[operator]
    for micro, skipped, evaluated in plan:
        trained, counted = script.step(sizes, micro, skipped, evaluated)  # type: ignore[arg-type]
        assert counted == trained


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("micro_batches", [1, 2, 4])
@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize("evaluated", [0, 3])
def test_copies_are_counted_by_their_numbers(ahead: int, micro_batches: int, skipped: int, evaluated: int) -> None:
    script = Script(ahead, copies=True)
    sizes = [32] * (8 * micro_batches * (1 + skipped))
    for _ in range(8):
        trained, counted = script.step(sizes, micro_batches, skipped, evaluated)
        assert counted == trained == 32 * micro_batches


def test_what_cannot_be_told_is_unknown() -> None:
    tally = Tally()
    for _ in range(20):
        for _ in range(2):
            tally.fetched(TRAIN, 20)
        tally.trained(35)
        tally.backward()
        counted = tally.lap()
    assert (counted.samples_drawn, counted.samples_entered) == (0, 0)
    assert tally.remarks() == (UNCOUNTED.format(UNSURE),)
