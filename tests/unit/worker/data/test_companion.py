from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from dpdoctor.worker.data.companion import GONE, HAS_WORKERS, NOT_MADE_UP, SEVERAL, Companion
from tests.measuring import measured

pytestmark = measured

FETCH_S = 0.002
FEEDS = frozenset({0})


class Items(Dataset[torch.Tensor]):
    """Items that wait, and know whether they are asked for in a loader process."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.error:
            raise self.error
        assert get_worker_info() is not None
        self.asked.append(index)
        time.sleep(FETCH_S / 2)
        return torch.zeros(3)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(100))


def beside(loader: DataLoader[torch.Tensor], seconds: float = 0.0) -> Companion:
    companion = Companion({0: loader}.get)
    companion.begin(FEEDS)
    time.sleep(seconds)
    return companion


def test_it_times_the_fetches_of_batches_as_large_as_the_scripts() -> None:
    companion = beside(DataLoader(Items(), batch_size=2), 0.1)
    assert companion.end() is None
    (found,) = companion.records()
    assert (found.loader, found.n > 0, found.fetch_ns >= FETCH_S * 1e9) == (0, True, True)


def test_fetches_of_all_windows_count_together() -> None:
    companion = beside(DataLoader(Items(), batch_size=2))
    assert companion.end() is None
    before = companion.records()[0].n
    companion.begin(FEEDS)
    assert companion.end() is None
    assert companion.records()[0].n > before


def test_nothing_of_the_scripts_is_moved() -> None:
    dataset, state = Items(), torch.get_rng_state()
    assert beside(DataLoader(dataset, shuffle=True)).end() is None
    assert torch.equal(torch.get_rng_state(), state)
    assert dataset.asked == [], "it was asked in another process"


def test_a_dataset_that_fails_in_a_process_says_how() -> None:
    reason = beside(DataLoader(Items(LookupError("no such row")))).end()
    assert reason is not None
    assert "no such row" in reason


@pytest.mark.parametrize(
    ("loaders", "loader", "reason"),
    [
        (FEEDS, DataLoader(Items()), None),
        (frozenset({0, 1}), DataLoader(Items()), SEVERAL),
        (FEEDS, None, GONE),
        (FEEDS, DataLoader(Items(), num_workers=1), HAS_WORKERS),
        (FEEDS, DataLoader(Stream()), NOT_MADE_UP),
        (FEEDS, DataLoader(Items(), batch_size=None), NOT_MADE_UP),
    ],
)
def test_where_it_need_not_or_cannot_fetch(loaders: frozenset[int], loader: object, reason: str | None) -> None:
    assert Companion(lambda _: loader).unfit(loaders) == reason  # type: ignore[arg-type,return-value]


def test_a_file_that_the_script_opened_meanwhile_is_not_read_beside_it(tmp_path: Path) -> None:
    companion = Companion({0: DataLoader(Items())}.get)
    assert companion.unfit(FEEDS) is None
    (tmp_path / "items.bin").write_bytes(b"items")
    with (tmp_path / "items.bin").open("rb"):
        reason = companion.unfit(FEEDS)
        companion.begin(FEEDS)
        assert companion.end() == reason
    assert reason is not None
    assert reason.startswith(f"{tmp_path}/items.bin is open, and a process that fetches")
    assert companion.records() == ()
    assert companion.unfit(FEEDS) is None, "it is closed again"


def test_a_loader_that_is_gone_meanwhile_leaves_nothing() -> None:
    companion = Companion(lambda _: None)
    companion.begin(FEEDS)
    assert companion.end() == GONE
    assert companion.records() == ()
