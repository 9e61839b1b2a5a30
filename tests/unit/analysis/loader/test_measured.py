"""What the simulation is fed with, worked out on paper."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.analysis.loader.facts import NO_FETCH
from dpdoctor.analysis.loader.feed import feed
from dpdoctor.analysis.loader.measured import NO_SENDING, NO_SEQUENCE, Measured, UnknownError, measured
from dpdoctor.analysis.loader.simulate import Setting
from dpdoctor.loading import HandOff
from dpdoctor.records import CpuUse, Launch, Rank
from tests.builders import records
from tests.builders.feeding import batch, even_batches, launch, loader, rank
from tests.builders.specs import MS

HAND_OFFS = (HandOff(loader=0, n=16, num_bytes=1000, send_ns=1 * MS, receive_ns=3 * MS),)
WORKERS = loader(num_workers=2, prefetch_factor=4)


def of(made: Launch) -> Measured:
    """Return what is measured in a launch, on a node of two cores."""
    found = feed(made)
    assert found is not None
    return measured(found, made, records.header({"single": 1}))


def one(made: Rank) -> Measured:
    return of(launch(made))


def test_without_workers_all_but_the_fetch_is_the_training_threads_work() -> None:
    # Of 100 ms from ask to ask 40 ms are the wait, 38 of them the fetch: 62 ms are not loading.
    found = one(rank(even_batches(8, fetch=38.0), hand_offs=HAND_OFFS))
    assert [len(block.fetch) for block in found.blocks] == [4, 4]
    assert found.blocks[0].fetch == pytest.approx([0.038] * 4)
    assert found.blocks[0].compute == pytest.approx([0.062] * 3)
    assert found.setting == Setting(num_workers=0, prefetch_factor=2)
    assert (found.send, found.receive) == (pytest.approx(0.001), pytest.approx(0.003))


def test_with_workers_the_wait_is_not_the_training_threads_work() -> None:
    batches = even_batches(8, wait=10.0, fetch=70.0, fetch_begin=5.0)
    batches = [replace(b, worker=b.batch % 2, fetch_begin_ns=b.asked_ns) for b in batches]
    found = one(rank(batches, loaders=(WORKERS,), hand_offs=HAND_OFFS))
    assert found.blocks[1].fetch == pytest.approx([0.070] * 4)
    assert found.blocks[1].compute == pytest.approx([0.090] * 3)
    assert found.setting == Setting(num_workers=2, prefetch_factor=4)


def test_waits_for_a_core_are_left_out() -> None:
    batches = [replace(b, queued_ns=10 * MS, gap_queued_ns=20 * MS) for b in even_batches(8, cpu=15.0)]
    found = one(rank(batches, hand_offs=HAND_OFFS))
    assert found.blocks[0].fetch == pytest.approx([0.030] * 4)
    assert found.blocks[0].compute == pytest.approx([0.040] * 3)
    assert found.cores.fetch == pytest.approx(0.5)


def test_over_the_edge_of_an_iteration_nothing_is_computed() -> None:
    batches = even_batches(8)
    batches[6:] = [replace(b, iteration=1, batch=b.batch - 7) for b in batches[6:]]
    found = one(rank(batches, hand_offs=HAND_OFFS))
    assert [len(block.compute) for block in found.blocks] == [3, 2]


def test_cores_are_what_the_process_used_beyond_its_fetches() -> None:
    # Per 100 ms: 90 ms of CPU, 30 of them the fetch's own; the other 60 lie in 60 ms.
    cpu = CpuUse(cpu_s=0.72, workers_cpu_s=0.0, wall_s=0.8, involuntary_switches=None, num_threads=4)
    cores = one(rank(even_batches(8, cpu=30.0), hand_offs=HAND_OFFS, cpu=cpu)).cores
    assert (cores.num, cores.threads) == (2.0, 1)
    assert (cores.fetch, cores.compute) == (pytest.approx(0.75), pytest.approx(1.0))


def test_threads_are_of_those_who_train_on_the_cpu() -> None:
    made = rank(even_batches(8), hand_offs=HAND_OFFS)
    assert made.record is not None
    conversion = replace(made.record.conversion, num_threads=2)
    for device, threads in (("cpu", 2), ("cuda", 1)):
        record = replace(made.record, conversion=conversion, device_type=device)
        cores = one(replace(made, record=record)).cores
        assert (cores.threads, cores.compute) == (threads, threads)


def test_ranks_of_one_node_share_its_cores() -> None:
    ranks = [rank(even_batches(8), index=index, world_size=2, hand_offs=HAND_OFFS) for index in range(2)]
    assert of(launch(*ranks)).cores.num == 1.0
    assert ranks[1].record is not None
    far = replace(ranks[1], record=replace(ranks[1].record, host="other"))
    assert of(launch(ranks[0], far)).cores.num == 2.0


def test_a_dataset_that_fails_in_a_worker_has_no_settings_to_predict() -> None:
    failed = replace(HAND_OFFS[0], failure="RuntimeError: Cannot re-initialize CUDA in forked subprocess")
    with pytest.raises(UnknownError, match=r"no loader process.*re-initialize CUDA"):
        one(rank(even_batches(8), hand_offs=(failed,)))


def test_what_is_missing_is_said() -> None:
    for made, reason in (
        (rank(even_batches(8)), NO_SENDING),
        (rank(even_batches(8, fetch=0.0), hand_offs=HAND_OFFS), NO_FETCH),
        (rank([batch(3, asked=200, wait=40.0)], hand_offs=HAND_OFFS), NO_SEQUENCE),
    ):
        with pytest.raises(UnknownError, match=reason):
            one(made)
