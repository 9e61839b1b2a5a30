"""Real loaders with real workers; the clock is the tests' own, and each worker has its copy of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from dpdoctor.loading import IN_PROCESS, BatchRecord
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.data.workers import depths
from tests.builders.handclock import HandClock
from tests.builders.rig import Rig

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:This DataLoader will create")
WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Rows(Dataset[int]):
    """A row takes as long as its number says, and 1 ns."""

    def __init__(self, clock: HandClock, length: int = 24) -> None:
        self.clock = clock
        self.length = length
        self.transforms: list[Callable[[int], Any]] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index >= 1000:
            raise LookupError(f"row {index} is missing")
        self.clock.tick(index + 1)
        for transform in self.transforms:
            transform(index)
        return index


class Many(Rows):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class Stream(IterableDataset[int]):
    """Each worker has its part of the numbers; the first is at its end long before the others."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in range(first, 40 if first else 20, every):
            self.clock.tick(number + 1)
            yield number


def rows(batch: Any) -> list[int]:
    return batch.tolist() if isinstance(batch.tolist(), list) else [batch.tolist()]


def takes(batch: Any) -> int:
    return sum(row + 1 for row in rows(batch))


def fetch_times(batches: list[BatchRecord]) -> list[int]:
    return [batch.fetch_ns for batch in batches]


@pytest.fixture
def dataset(rig: Rig) -> Rows:
    return Rows(rig.clock)


@WORKERS
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Rows, {"batch_size": 4}),
        (Rows, {"batch_size": 5, "shuffle": True}),
        (Rows, {"batch_size": 5, "shuffle": True, "drop_last": True}),
        (Rows, {"batch_size": None}),
        (Many, {"batch_size": 4}),
        (Stream, {"batch_size": 3}),
        (Stream, {"batch_size": None}),
        (Rows, {"batch_size": 4, "collate_fn": torch.tensor}),
    ],
)
def test_each_batch_has_the_time_of_its_own_fetch(rig: Rig, kind: Any, options: dict[str, Any], workers: int) -> None:
    loader = DataLoader(kind(rig.clock), num_workers=workers, **options)
    taken = [torch.as_tensor(batch) for _ in range(2) for batch in loader]
    assert fetch_times(rig.batches) == [takes(batch) for batch in taken]
    per_iteration = len(taken) // 2
    assert [(b.iteration, b.batch) for b in rig.batches] == [divmod(n, per_iteration) for n in range(len(taken))]
    assert {batch.worker for batch in rig.batches} == ({0, 1} if workers else {IN_PROCESS})
    assert all(batch.cpu_ns > 0 for batch in rig.batches)


@pytest.mark.parametrize("options", [{}, {"in_order": False}, {"prefetch_factor": 5}, {"num_workers": 1}])
def test_persistent_workers_are_followed_through_iterations_that_are_broken_off(
    rig: Rig, dataset: Rows, options: dict[str, Any]
) -> None:
    loader = DataLoader(dataset, batch_size=2, shuffle=True, persistent_workers=True, **{"num_workers": 3, **options})
    taken = []
    for length in (12, 1, 5, 12):
        for number, batch in enumerate(loader, 1):
            taken.append(batch)
            if number == length:
                break
    assert fetch_times(rig.batches) == [takes(batch) for batch in taken]
    assert [batch.iteration for batch in rig.batches] == [0] * 12 + [1] + [2] * 5 + [3] * 12


def test_an_evaluation_leaves_no_record_and_its_persistent_workers_are_seen_when_they_train(
    rig: Rig, dataset: Rows
) -> None:
    loader = DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True)
    with torch.no_grad():
        assert len(list(loader)) == 6
        assert len(list(DataLoader(dataset, batch_size=4))) == 6
    assert rig.batches == []
    taken = list(loader)
    assert fetch_times(rig.batches) == [takes(batch) for batch in taken]
    assert {batch.iteration for batch in rig.batches} == {0}


def test_without_workers_waiting_is_fetching(rig: Rig, dataset: Rows) -> None:
    def collate(items: list[int]) -> torch.Tensor:
        rig.clock.tick(100)
        return torch.tensor(items)

    batches = iter(DataLoader(dataset, batch_size=4, collate_fn=collate))
    next(batches)
    rig.clock.tick(50)
    asked_ns = rig.clock()
    next(batches)
    record = rig.batches[1]
    assert (record.asked_ns, record.fetch_begin_ns) == (asked_ns, asked_ns)
    assert record.wait_ns == record.fetch_ns == 5 + 6 + 7 + 8 + 100
    assert record.collate_ns == 100
    assert rig.batches[0].num_bytes == 4 * 8
    assert (record.ready, record.outstanding, record.step) == (0, 0, 1)


def test_the_depth_of_the_queue_is_seen(rig: Rig, dataset: Rows) -> None:
    iterator = iter(DataLoader(dataset, batch_size=1, num_workers=2, prefetch_factor=3))
    next(iterator)
    # One may have come out of turn, and lie outside of the queue.
    while depths(iterator) != (6, 0):
        time.sleep(0.001)
    next(iterator)
    assert (rig.batches[1].ready, rig.batches[1].outstanding) == (6, 0)
    first = rig.batches[0]
    assert first.ready + first.outstanding == 6


def test_two_loaders_have_records_of_their_own(rig: Rig, dataset: Rows) -> None:
    first = DataLoader(dataset, batch_size=4, num_workers=1)
    second = DataLoader(Rows(rig.clock), batch_size=6)
    taken: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    for one, other in zip(first, second, strict=False):
        taken[0].append(one)
        taken[1].append(other)
    for loader, batches in taken.items():
        records = [record for record in rig.batches if record.loader == loader]
        assert fetch_times(records)[: len(batches)] == [takes(batch) for batch in batches]


def test_the_opening_of_an_iteration_is_timed(rig: Rig, dataset: Rows) -> None:
    class Sampler:
        def __iter__(self) -> Iterator[int]:
            rig.clock.tick(70)
            return iter(range(8))

        def __len__(self) -> int:
            return 8

    list(DataLoader(dataset, sampler=Sampler(), batch_size=4, num_workers=1))
    assert [batch.opening_ns for batch in rig.batches] == [70, 0]


@WORKERS
def test_transforms_are_timed_now_and_then(rig: Rig, dataset: Rows, workers: int) -> None:
    dataset.transforms = [lambda _: rig.clock.tick(3), lambda _: rig.clock.tick(40), abs]
    list(DataLoader(dataset, batch_size=2, num_workers=workers))
    # Two items, in the second batch that each process fetches; what they take is too little for another look.
    looked = 2 * max(workers, 1)
    first, second = rig.loaders.transforms()
    assert (first.loader, first.position, first.name, first.calls, first.total_ns) == (
        0,
        0,
        "<lambda>",
        looked,
        3 * looked,
    )
    assert (second.position, second.calls, second.total_ns) == (1, looked, 40 * looked)
    assert first.items_ns == second.items_ns > 43 * looked
    assert type(dataset.transforms) is list


@WORKERS
def test_what_a_dataset_raises_rises_and_the_next_batch_has_its_own_time(rig: Rig, workers: int) -> None:
    dataset = Rows(rig.clock)
    loader = DataLoader(dataset, batch_sampler=[[1, 2], [1000], [3, 4], [5, 6], [7, 8]], num_workers=workers)
    iterator = iter(loader)
    taken = [next(iterator)]
    with pytest.raises(LookupError, match="row 1000 is missing"):
        next(iterator)
    taken.extend(iterator)
    assert fetch_times(rig.batches) == [takes(batch) for batch in taken] == [5, 9, 13, 17]


def test_workers_that_are_not_forked_get_torchs_own_loop(rig: Rig) -> None:
    loader = DataLoader(torch.arange(6), batch_size=2, num_workers=1, multiprocessing_context="spawn")  # type: ignore[arg-type]
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    assert [(batch.worker, batch.fetch_ns, batch.num_bytes) for batch in rig.batches] == [(0, 0, 0)] * 3
    assert "not forked" in rig.loaders.records()[0].note


def test_a_thread_that_fetches_ahead_leaves_no_record(rig: Rig, dataset: Rows) -> None:
    rig.phases.belongs_here()
    thread = threading.Thread(target=lambda: list(DataLoader(dataset, batch_size=4)))
    thread.start()
    thread.join()
    assert rig.batches == []


def test_a_batch_that_comes_in_a_way_of_its_own_leaves_no_record(rig: Rig, dataset: Rows) -> None:
    loader = DataLoader(dataset, batch_size=4)
    iterator: Any = iter(loader)
    iterator._next_data = lambda: "something else"
    assert next(iterator) == "something else"
    assert rig.batches == []


class Nested(Dataset[int]):
    """Each item is read from a loader of the dataset's own."""

    def __init__(self, clock: HandClock) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        self.clock.tick(1000)
        return int(sum(DataLoader(Rows(self.clock, 2), batch_size=1), start=torch.tensor(0))) + index


def test_a_loader_inside_a_dataset_is_not_taken_for_the_workers_own(rig: Rig) -> None:
    list(DataLoader(Nested(rig.clock), batch_size=2, num_workers=1))
    assert fetch_times(rig.batches) == [2 * (1000 + 3)] * 3


@WORKERS
def test_batches_are_the_same_with_and_without_us(workers: int) -> None:
    class Random(Rows):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index) + torch.rand(())

    def train() -> list[list[float]]:
        torch.manual_seed(3)
        dataset = Random(HandClock())
        dataset.transforms = [lambda _: torch.rand(())]
        generator = torch.Generator().manual_seed(5)
        loader = DataLoader(dataset, batch_size=2, shuffle=True, num_workers=workers, generator=generator)
        return [batch.tolist() for _ in range(2) for batch in loader]

    patches = Patches()
    rig = Rig(patches)
    watched = train()
    patches.undo()
    assert len(rig.batches) == len(watched) == 24
    assert watched == train()


def without_thirds(items: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([item for item in items if int(item[0]) % 3])


def packed(items: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(items).reshape(-1, 2 * len(items[0]))


def stacked_second(items: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(items, 1)


@WORKERS
@pytest.mark.parametrize(
    ("collate", "is_told"), [(None, True), (without_thirds, True), (packed, False), (stacked_second, False)]
)
def test_shapes_tell_whether_each_row_is_an_item(rig: Rig, collate: Any, is_told: bool, workers: int) -> None:
    items = [torch.full((5,), number) for number in range(24)]
    list(DataLoader(items, batch_size=4, num_workers=workers, collate_fn=collate))  # type: ignore[arg-type]
    assert bool(rig.tally.item_per_row) is is_told
