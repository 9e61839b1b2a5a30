"""A loader's callables and its processes."""

from __future__ import annotations

import pytest

from dpdoctor.analysis.loader import facts, parts
from dpdoctor.analysis.loader.feed import Feed, feed
from dpdoctor.loading import TransformTime
from dpdoctor.records import Rank
from tests.builders.feeding import batch, even_batches, launch, loader, rank
from tests.builders.specs import MS

WORKERS = (loader(num_workers=2, prefetch_factor=2),)


def fed(made: Rank) -> Feed:
    """Return the feed of one rank."""
    found = feed(launch(made))
    assert found is not None
    return found


def test_transforms_are_shares_of_the_fetch_in_the_order_of_the_chain() -> None:
    times = (
        TransformTime(loader=0, position=1, name="ToTensor", calls=32, total_ns=2 * MS, items_ns=10 * MS),
        TransformTime(loader=0, position=0, name="RandomAffine", calls=32, total_ns=5 * MS, items_ns=10 * MS),
        TransformTime(loader=1, position=0, name="Resize", calls=32, total_ns=5 * MS, items_ns=10 * MS),
    )
    # Collate takes a quarter of the 40 ms: items take 30 ms, half of them RandomAffine.
    made = rank(even_batches(8, collate=10.0), transforms=times)
    affine, to_tensor = parts.transforms(fed(made), launch(made))
    assert (affine.name, affine.share, affine.per_batch.value) == (
        "RandomAffine",
        pytest.approx(0.375),
        pytest.approx(0.015),
    )
    assert (to_tensor.name, to_tensor.share) == ("ToTensor", pytest.approx(0.15))


def test_workers_are_busy_for_the_part_of_a_fetch_that_lies_in_a_window() -> None:
    # Windows from 0 to 800 ms. Worker 0 fetches from -50 to 150 ms, worker 1 twice, the second time past the end.
    batches = [
        batch(1, asked=0, wait=150.0, fetch_begin=-50.0, fetch=200.0, worker=0),
        batch(2, asked=150, wait=10.0, fetch_begin=0.0, fetch=100.0, worker=1),
        batch(9, asked=900, wait=10.0, fetch_begin=780.0, fetch=120.0, worker=1),
    ]
    first, second = parts.workers(fed(rank(batches, loaders=WORKERS)))
    assert (first.rank, first.worker, first.busy) == (0, 0, pytest.approx(150 / 800))
    assert first.fetch.reason == facts.NO_FETCH
    assert (second.worker, second.batches, second.busy) == (1, 2, pytest.approx(120 / 800))
    assert second.fetch.value == pytest.approx(0.110)


def test_the_training_thread_is_no_worker() -> None:
    assert parts.workers(fed(rank(even_batches(8)))) == ()


def test_fetch_times_are_those_of_each_process() -> None:
    batches = [
        batch(1, asked=0, wait=150.0, fetch_begin=10.0, fetch=200.0, worker=0),
        batch(2, asked=150, wait=10.0, fetch_begin=0.0, fetch=100.0, worker=1),
        batch(3, asked=250, wait=10.0, fetch_begin=300.0, fetch=50.0, worker=1),
    ]
    assert parts.fetch_times(fed(rank(batches, loaders=WORKERS))) == {
        (0, 0): [pytest.approx(0.2)],
        (0, 1): [pytest.approx(0.1), pytest.approx(0.05)],
    }
    (process,) = parts.fetch_times(fed(rank(even_batches(8))))
    assert process == (0, None)
