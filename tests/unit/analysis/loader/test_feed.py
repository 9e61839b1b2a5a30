"""The figures of a loader: what counts for which, worked out on paper."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis.loader.feed import (
    DISTURBED,
    NO_EDGE,
    NO_FETCH,
    NO_HAND_OFF,
    Feed,
    batch_bytes,
    batch_tensors,
    collate_time,
    cpu_ratio,
    epoch_start,
    feed,
    fetch_cv,
    fetch_time,
    fetch_times,
    queued_time,
    ready_shares,
    receive_time,
    transform_summaries,
    wait_time,
    worker_summaries,
)
from dpdoctor.loading import FRESH_WORKERS, HandOff, TransformTime
from dpdoctor.records import Rank
from tests.builders.feeding import batch, even_batches, launch, loader, rank
from tests.builders.specs import MS

HAND_OFF = HandOff(loader=0, n=20, num_bytes=1000, send_ns=2 * MS, receive_ns=3 * MS)


def fed(*ranks: Rank) -> Feed:
    """Return the feed of a launch that has one."""
    found = feed(launch(*ranks))
    assert found is not None
    return found


def with_edge(made: Rank, step: int) -> Rank:
    """Return the rank with an epoch edge in one step."""
    steps = tuple(replace(s, epoch_edge=s.step == step) for s in made.steps)
    return replace(made, steps=steps)


def test_fetch_and_wait_are_means_with_an_interval_over_the_windows() -> None:
    found = fed(rank([*even_batches(4), *even_batches(8, wait=20.0)[4:]]))
    fetch = fetch_time(found)
    assert (fetch.value, fetch.n) == (pytest.approx(0.030), 2)
    assert fetch.low is not None
    assert fetch.low < 0.020
    assert wait_time(found).value == pytest.approx(0.030)
    assert fetch_cv(found) == pytest.approx(0.35635, abs=1e-5)


def test_all_ranks_are_in_the_figures() -> None:
    ranks = [rank(even_batches(8, wait=wait), index=index, world_size=2) for index, wait in enumerate((40.0, 80.0))]
    found = fed(*ranks)
    assert fetch_time(found).value == pytest.approx(0.060)
    assert wait_time(found).value == pytest.approx(0.060)


def test_without_a_full_window_or_a_batch_nothing_is_known() -> None:
    assert feed(launch(rank([]))) is None
    assert feed(launch(rank(even_batches(8), num_windows=0))) is None


def test_the_loader_that_feeds_most_steps_is_the_one() -> None:
    validation = [replace(b, wait_ns=10 * b.wait_ns) for b in even_batches(2)]
    training = [replace(b, loader=1) for b in even_batches(8)]
    made = rank([*validation, *training], loaders=(loader(dataset="Validation"), loader(dataset="Training")))
    assert fed(made).loader.dataset == "Training"


def test_cpu_and_collate_are_parts_of_the_fetch() -> None:
    found = fed(rank(even_batches(8, cpu=10.0, collate=4.0)))
    assert cpu_ratio(found).value == pytest.approx(0.25)
    assert collate_time(found).value == pytest.approx(0.004)


def test_waits_for_a_core_are_a_part_of_the_fetch_of_which_the_cpu_ratio_knows_nothing() -> None:
    found = fed(rank([replace(b, queued_ns=30 * MS) for b in even_batches(8, cpu=5.0)]))
    assert (fetch_time(found).value, queued_time(found).value) == pytest.approx((0.040, 0.030))
    assert cpu_ratio(found).value == pytest.approx(0.5)


def test_tensors_are_those_of_a_batch_that_was_handed_over() -> None:
    assert batch_tensors((replace(HAND_OFF, num_tensors=2),)) == 2
    assert batch_tensors((HAND_OFF,)) is None
    assert batch_tensors(()) is None


def test_what_an_ablation_fetched_ahead_is_not_judged() -> None:
    # Fetched before the first window, in 90 ms; asked for in it.
    ahead = batch(1, asked=0, wait=1.0, fetch_begin=-95.0, fetch=90.0)
    found = fed(rank([ahead, *even_batches(8)[1:]]))
    assert fetch_time(found).value == pytest.approx(0.040)


def test_fetches_that_outlast_the_windows_are_those_asked_for() -> None:
    ahead = [replace(b, fetch_begin_ns=b.asked_ns - 5000 * MS, fetch_ns=900 * MS) for b in even_batches(8)]
    assert fetch_time(fed(rank(ahead))).value == pytest.approx(0.900)


def test_unknown_fetches_stay_unknown() -> None:
    found = fed(rank(even_batches(8, fetch=0.0)))
    assert fetch_time(found).reason == NO_FETCH
    assert cpu_ratio(found).reason == NO_FETCH
    assert fetch_cv(found) is None


def test_fetches_of_fresh_interpreters_are_unknown_because_of_them() -> None:
    found = fed(rank(even_batches(8, fetch=0.0), loaders=(loader(num_workers=1, note=f"as it is; {FRESH_WORKERS}"),)))
    assert fetch_time(found).reason == FRESH_WORKERS


def test_ready_is_the_share_of_asks() -> None:
    depths = [0, 0, 1, 1, 1, 1, 2, -1]
    found = fed(rank([replace(b, ready=depth) for b, depth in zip(even_batches(8), depths, strict=True)]))
    assert ready_shares(found) == pytest.approx({0: 2 / 7, 1: 4 / 7, 2: 1 / 7})


def test_bytes_are_the_mean_of_what_is_known() -> None:
    sizes = [0, 100, 100, 400, 100, 100, 100, 100]
    found = fed(rank([replace(b, num_bytes=size) for b, size in zip(even_batches(8), sizes, strict=True)]))
    assert batch_bytes(found) == pytest.approx(1000 / 7)
    assert batch_bytes(fed(rank(even_batches(8)))) is None


def lying_ready() -> Rank:
    """Return a rank that takes over twelve ready batches in 2 ms each, and waits for one more."""
    ready = [
        batch(n, asked=100 * n - 100, wait=2.0, fetch_begin=100 * n - 200, worker=0, ready=1) for n in range(1, 13)
    ]
    # Fetched while it was waited for: its wait is no taking over.
    late = batch(13, asked=1200, wait=70.0, worker=0, ready=1)
    return rank([*ready, late], num_windows=4, loaders=(loader(num_workers=1, prefetch_factor=2),))


def test_receive_is_what_ready_batches_took() -> None:
    assert receive_time(fed(lying_ready()), (HAND_OFF,)).value == pytest.approx(0.002)


def test_receive_is_the_hand_off_where_others_took_cores() -> None:
    # What ready batches took holds waits for cores then.
    found = replace(fed(lying_ready()), disturbed=True)
    assert receive_time(found, (HAND_OFF,)).value == pytest.approx(0.003)
    assert receive_time(found, ()).reason == DISTURBED


def test_receive_is_the_hand_off_where_no_batch_lay_ready() -> None:
    found = fed(rank(even_batches(8)))
    assert receive_time(found, (HAND_OFF,)).value == pytest.approx(0.003)
    assert receive_time(found, ()).reason == NO_HAND_OFF


def test_the_edge_is_the_first_batch_and_its_iterator() -> None:
    # An epoch begins in step 3: its iterator takes 25 ms, its first batch 100 ms, the others 40 ms.
    batches = even_batches(8)
    batches[2] = replace(batch(3, asked=230, wait=100.0), iteration=1, batch=0, opening_ns=25 * MS)
    made = with_edge(rank(batches), 3)
    assert epoch_start(fed(made)).value == pytest.approx(0.085)


def test_no_edge_in_a_full_window_is_unknown() -> None:
    made = rank(even_batches(8))
    assert epoch_start(fed(made)).reason == NO_EDGE


WORKERS = (loader(num_workers=2, prefetch_factor=2),)


def fed_by_workers(made: Rank) -> Feed:
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
    affine, to_tensor = transform_summaries(fed_by_workers(made), launch(made))
    assert (affine.name, affine.share, affine.per_batch.value) == (
        "RandomAffine",
        pytest.approx(0.375),
        pytest.approx(0.015),
    )
    assert (to_tensor.name, to_tensor.share) == ("ToTensor", pytest.approx(0.15))


def test_workers_are_busy_for_the_part_of_a_fetch_that_lies_in_a_window() -> None:
    # Windows from 0–800 ms. Worker 0 fetches from -50 to 150 ms, worker 1 twice, the second time past the end.
    batches = [
        batch(1, asked=0, wait=150.0, fetch_begin=-50.0, fetch=200.0, worker=0),
        batch(2, asked=150, wait=10.0, fetch_begin=0.0, fetch=100.0, worker=1),
        batch(9, asked=900, wait=10.0, fetch_begin=780.0, fetch=120.0, worker=1),
    ]
    first, second = worker_summaries(fed_by_workers(rank(batches, loaders=WORKERS)))
    assert (first.rank, first.worker, first.busy) == (0, 0, pytest.approx(150 / 800))
    assert first.fetch.reason == NO_FETCH
    assert (second.worker, second.batches, second.busy) == (1, 2, pytest.approx(120 / 800))
    assert second.fetch.value == pytest.approx(0.110)


def test_the_training_thread_is_no_worker() -> None:
    assert worker_summaries(fed_by_workers(rank(even_batches(8)))) == ()


def test_fetch_times_are_those_of_each_process() -> None:
    batches = [
        batch(1, asked=0, wait=150.0, fetch_begin=10.0, fetch=200.0, worker=0),
        batch(2, asked=150, wait=10.0, fetch_begin=0.0, fetch=100.0, worker=1),
        batch(3, asked=250, wait=10.0, fetch_begin=300.0, fetch=50.0, worker=1),
    ]
    assert fetch_times(fed_by_workers(rank(batches, loaders=WORKERS))) == {
        (0, 0): [pytest.approx(0.2)],
        (0, 1): [pytest.approx(0.1), pytest.approx(0.05)],
    }
    (process,) = fetch_times(fed_by_workers(rank(even_batches(8))))
    assert process == (0, None)
