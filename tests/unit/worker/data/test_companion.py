from __future__ import annotations

import gc
import os
import random
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, get_worker_info

from dpdoctor.loading import IN_PROCESS
from dpdoctor.spec import ONE_WORKER, SEVERAL_LOADERS, LoaderSetting
from dpdoctor.worker.data import companion as companions
from dpdoctor.worker.data.companion import (
    CANNOT_TELL,
    FAILED,
    FAILED_HERE,
    GONE,
    HAS_WORKERS,
    LEFT_OPEN,
    NOT_MADE_UP,
    SHARED,
    Companion,
    Held,
)
from tests.builders.rig import Rig

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

ITEM_S = 0.002
FEEDS = frozenset({0})
WITHOUT_WORKERS = LoaderSetting(num_workers=0, prefetch_factor=0)


class Items(Dataset[torch.Tensor]):
    """Items that wait; in another process than the one that made them they raise, or end it."""

    def __init__(self, *, error: Exception | None = None, dies: bool = False, hangs: bool = False) -> None:
        self.error = error
        self.dies = dies
        self.hangs = hangs
        self.made_by = os.getpid()
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked.append(index)
        if os.getpid() != self.made_by:
            if self.dies:
                os._exit(1)
            if self.error is not None:
                raise self.error
            if self.hangs:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(60)
        time.sleep(ITEM_S)
        return torch.tensor([index])


class OnlyKeys(Items):
    """Items that have letters, and no numbers."""

    def __getitem__(self, index: Any) -> torch.Tensor:
        return super().__getitem__(ord(index))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(100))


class Tried:
    """A loader whose batches are replayed, each when a process has handed over one of its own."""

    def __init__(self, rig: Rig, dataset: Dataset[torch.Tensor], **fields: Any) -> None:
        rig.loaders._inside._clock = time.monotonic_ns  # type: ignore[union-attr]
        rig.loaders._inside._waits._clock = time.monotonic_ns  # type: ignore[union-attr]
        self.replay, self.companion = rig.loaders.replay, rig.loaders.companion
        self.loader = DataLoader(dataset, batch_size=2, **fields)
        self.iterator = iter(self.loader)
        self.replay.keep(on=True)
        self.kept = self.take(2)
        self.replay.keep(on=False)

    def take(self, num: int) -> list[list[int]]:
        return [next(self.iterator).flatten().tolist() for _ in range(num)]

    def begin(self, setting: LoaderSetting = ONE_WORKER) -> None:
        self.replay.begin(wait=self.companion.take)
        self.companion.begin(FEEDS, setting)

    def end(self) -> str | None:
        failure = self.companion.end()
        assert self.replay.end(FEEDS) == (None, False)
        return failure


def test_the_training_gets_kept_batches_when_a_process_handed_over_its_own(rig: Rig) -> None:
    dataset = Items()
    tried = Tried(rig, dataset)
    asked, recorded = len(dataset.asked), len(rig.batches)
    tried.begin()
    assert tried.take(4) == 2 * tried.kept
    assert tried.end() is None
    assert len(dataset.asked) == asked, "it was asked in another process"
    found = rig.batches[recorded:]
    assert [(b.loader, b.worker, b.batch, b.step) for b in found] == [(0, 0, number, 1) for number in range(4)]
    # It had nothing ahead when the first was asked for.
    assert found[0].wait_ns >= found[0].fetch_ns >= 2 * ITEM_S * 1e9
    assert {b.iteration for b in found}.isdisjoint(b.iteration for b in rig.batches[:recorded])


def test_afterwards_the_loader_goes_on_where_it_was(rig: Rig) -> None:
    tried = Tried(rig, Items())
    tried.begin()
    tried.take(1)
    tried.end()
    assert tried.take(1) == [[4, 5]]
    assert rig.batches[-1].worker == IN_PROCESS
    assert rig.loaders._loader(0) is tried.loader


def test_it_fetches_in_every_window_from_a_new_process(rig: Rig) -> None:
    tried = Tried(rig, Items())
    for _ in range(2):
        tried.begin()
        tried.take(3)
        assert tried.end() is None
    assert [b.batch for b in rig.batches if b.worker != IN_PROCESS] == [0, 1, 2, 0, 1, 2]


def test_nothing_of_the_scripts_is_moved(rig: Rig) -> None:
    tried = Tried(rig, Items(), shuffle=True)
    state, records = torch.get_rng_state(), rig.loaders.records()
    tried.begin()
    tried.take(3)
    assert tried.end() is None
    assert torch.equal(torch.get_rng_state(), state)
    assert rig.loaders.records() == records


def test_it_fetches_by_what_the_scripts_sampler_gave(rig: Rig) -> None:
    tried = Tried(rig, OnlyKeys(), sampler=list("abcdefghij"))
    tried.begin()
    tried.take(3)
    assert tried.end() is None


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (Items(error=LookupError("no such row")), FAILED.format(error="LookupError: no such row")),
        (Items(dies=True), "exited unexpectedly"),
    ],
)
def test_a_dataset_that_fails_in_a_process_says_how_and_the_training_goes_on(
    rig: Rig, dataset: Items, reason: str
) -> None:
    tried = Tried(rig, dataset)
    tried.begin()
    assert tried.take(2) == tried.kept
    failure = tried.end()
    assert failure is not None
    assert reason in failure


def test_a_process_that_hands_nothing_over_is_not_waited_for_and_another_one_may_do_better(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companions, "LEAST_PATIENCE_S", 0.2)
    tried = Tried(rig, Items(hangs=True))
    lost_ns = [0]
    for may_do_better in (True, False):
        tried.begin()
        (process,) = tried.companion._iterator._workers
        assert tried.take(2) == tried.kept, "the training goes on"
        assert "handed nothing over" in (tried.end() or "")
        assert tried.companion.may_do_better == may_do_better
        assert not process.is_alive()
        lost_ns.append(tried.companion.lost_ns)
        assert lost_ns[-1] >= lost_ns[-2] + 0.2e9


def test_patience_goes_by_the_longest_fetch(rig: Rig) -> None:
    Tried(rig, Items())
    longest_s = max(batch.fetch_ns for batch in rig.batches) * 1e-9
    assert rig.loaders._longest_fetch_s(0) == longest_s >= 2 * ITEM_S


def test_a_process_that_cannot_be_forked_is_no_end() -> None:
    def fails(*_: Any) -> NoReturn:
        raise BlockingIOError("no more processes")

    loader = DataLoader(Items())
    companion = Companion(lambda _: loader, fails)
    companion.begin(FEEDS)
    companion.take()
    assert companion.end() == FAILED.format(error="BlockingIOError: no more processes")


def unopened(*_: Any) -> NoReturn:
    raise AssertionError("it was not fit")


@pytest.mark.parametrize(
    ("loaders", "loader", "reason"),
    [
        (FEEDS, DataLoader(Items()), None),
        (frozenset({0, 1}), DataLoader(Items()), SEVERAL_LOADERS),
        (FEEDS, None, GONE),
        (FEEDS, DataLoader(Items(), num_workers=1), None),
        (FEEDS, DataLoader(Stream()), NOT_MADE_UP),
        (FEEDS, DataLoader(Items(), batch_size=None), NOT_MADE_UP),
        (FEEDS, DataLoader(Items(), sampler=[3, 4]), NOT_MADE_UP),
    ],
)
def test_where_it_cannot_fetch(loaders: frozenset[int], loader: Any, reason: str | None) -> None:
    assert Companion(lambda _: loader, unopened).unfit(loaders) == reason


@pytest.mark.parametrize(("num_workers", "reason"), [(0, None), (1, HAS_WORKERS)])
def test_a_loader_with_workers_needs_no_first_one(num_workers: int, reason: str | None) -> None:
    loader = DataLoader(Items(), num_workers=num_workers)
    assert Companion(lambda _: loader, unopened).unneeded(FEEDS) == reason


def test_workers_of_another_setting_fetch_ahead_as_it_says() -> None:
    opened: list[Any] = []

    def opens(apart: Any, _: int) -> tuple[Any, Any]:
        opened.append(apart)
        return apart.begin(), lambda: None

    loader = DataLoader(Items(), num_workers=1)
    companion = Companion(lambda _: loader, opens)
    companion.begin(FEEDS, LoaderSetting(num_workers=2, prefetch_factor=3))
    assert companion.end() is None
    assert (opened[0].num_workers, opened[0].prefetch_factor) == (2, 3)


class Drawn(Items):
    """Items with random numbers in them."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + int(random.random() + float(torch.rand(())) + np.random.random())


def test_without_workers_the_training_thread_fetches_and_the_scripts_random_numbers_stay(rig: Rig) -> None:
    dataset = Drawn()
    tried = Tried(rig, dataset, num_workers=1)
    asked, recorded = len(dataset.asked), len(rig.batches)
    states = torch.get_rng_state(), str(np.random.get_state()), random.getstate()
    tried.begin(WITHOUT_WORKERS)
    tried.take(3)
    assert tried.end() is None
    assert len(dataset.asked) == asked + 3 * 2
    assert [b.worker for b in rig.batches[recorded:]] == 3 * [IN_PROCESS]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (str(np.random.get_state()), random.getstate()) == states[1:]


class OpenedLate(Items):
    """Items of a file that is opened where the first one is asked for, as there is to be one in each worker."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.file: Any = None
        path.write_bytes(bytes(100))

    def __getitem__(self, index: int) -> torch.Tensor:
        self.file = self.file or self.path.open("rb")
        return super().__getitem__(index)

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


@pytest.mark.parametrize("wrapped", [lambda items: items, lambda items: Subset(items, range(50))])
def test_what_the_training_thread_opens_for_its_fetches_is_not_left_to_workers_that_are_forked_later(
    rig: Rig, tmp_path: Path, wrapped: Any
) -> None:
    items = OpenedLate(tmp_path / "items.bin")
    tried = Tried(rig, wrapped(items), num_workers=1)
    for _ in range(2):
        tried.begin(WITHOUT_WORKERS)
        tried.take(2)
        assert tried.end() is None
        assert items.file is None


def test_of_a_file_that_stays_open_by_a_fetch_of_the_training_thread_it_is_said_so(rig: Rig, tmp_path: Path) -> None:
    tried = Tried(rig, ConcatDataset([OpenedLate(tmp_path / "items.bin")]), num_workers=1)
    tried.begin(WITHOUT_WORKERS)
    tried.take(2)
    assert tried.end() == LEFT_OPEN.format(held=f"{tmp_path}/items.bin is open")


class Owner(Items):
    """Items of a directory that goes with them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        path.mkdir()

    def __getitem__(self, index: int) -> torch.Tensor:
        assert self.path.exists()
        return super().__getitem__(index)

    def __del__(self) -> None:
        self.path.rmdir()


@pytest.mark.parametrize("wrapped", [lambda items: items, lambda items: Subset(items, range(50))])
def test_what_the_scripts_dataset_releases_at_its_end_is_not_released_before(
    rig: Rig, tmp_path: Path, wrapped: Any
) -> None:
    items = Owner(tmp_path / "items")
    tried = Tried(rig, wrapped(items), num_workers=1)
    tried.begin(WITHOUT_WORKERS)
    tried.take(2)
    assert tried.end() is None
    gc.collect()
    assert items.path.exists()


def test_datasets_that_refer_to_each_other_are_copied_once_each() -> None:
    first, *others = own = [Items() for _ in range(3)]
    first.left, first.right = others  # type: ignore[attr-defined]
    for each in others:
        each.above, each.most = first, others[0]  # type: ignore[attr-defined]
    copied: Any = companions._copy(first, {})
    copies = [copied, copied.left, copied.right]
    assert not {id(each) for each in copies} & {id(each) for each in own}
    assert all(each.above is copied and each.most is copied.left for each in copies[1:])
    assert first.left is others[0]  # type: ignore[attr-defined]


class Only(Items):
    """Its copies are itself."""

    def __copy__(self) -> Only:
        return self


def test_a_dataset_that_gives_itself_for_a_copy_stays_as_it_was() -> None:
    only, inner = Only(), Items()
    only.inner = inner  # type: ignore[attr-defined]
    assert companions._copy(only, {}) is only
    assert only.inner is inner  # type: ignore[attr-defined]


class Parted(Items):
    """Items that only a worker has."""

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        return super().__getitem__(index + 0 * info.id)  # type: ignore[union-attr]


def test_a_dataset_that_works_in_loader_processes_alone_is_not_said_to_fail_in_one(rig: Rig) -> None:
    tried = Tried(rig, Parted(), num_workers=1)
    tried.begin(WITHOUT_WORKERS)
    tried.take(2)
    error = "AttributeError: 'NoneType' object has no attribute 'id'"
    assert tried.end() == FAILED_HERE.format(error=error)


def test_a_file_that_the_script_opened_meanwhile_is_not_read_beside_it(tmp_path: Path) -> None:
    loader = DataLoader(Items())
    companion = Companion(lambda _: loader, unopened)
    assert companion.unfit(FEEDS) is None
    (tmp_path / "items.bin").write_bytes(b"items")
    with (tmp_path / "items.bin").open("rb"):
        reason = companion.unfit(FEEDS)
        companion.begin(FEEDS)
        assert companion.end() == reason
    assert reason is not None
    assert reason == SHARED.format(held=f"{tmp_path}/items.bin is open")
    assert companion.unfit(FEEDS) is None, "it is closed again"


def test_a_loader_that_is_gone_meanwhile_leaves_nothing() -> None:
    companion = Companion(lambda _: None, unopened)
    companion.begin(FEEDS)
    companion.take()
    assert companion.end() == GONE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "items.bin").write_bytes(bytes(100_000))
    return tmp_path / "items.bin"


@pytest.mark.parametrize("mode", ["rb", "r+b", "a+b"])
def test_a_file_that_is_read_by_place(path: Path, mode: str) -> None:
    held = Held()
    with path.open(mode):
        assert held.shared() == f"{path} is open"
    assert held.shared() is None


def test_a_file_that_has_no_name_any_more() -> None:
    held = Held()
    with tempfile.TemporaryFile() as file:
        file.write(b"items")
        shared = held.shared()
    assert shared is not None
    assert "(deleted) is open" in shared


def test_a_connection() -> None:
    held = Held()
    near, far = socket.socketpair()
    with near, far:
        assert held.shared() == "a connection (socket) is open"


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_a_log_is_only_written(path: Path, mode: str) -> None:
    held = Held()
    with path.open(mode):
        assert held.shared() is None


def test_what_was_open_before_the_script_began(path: Path) -> None:
    with path.open("rb"):
        held = Held()
        assert held.shared() is None
        with path.open("rb"):
            assert held.shared() == f"{path} is open", "again, and this place in it is the script's"


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    assert Held(tmp_path / "none").shared() == CANNOT_TELL
