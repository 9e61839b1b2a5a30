"""Which settings fit into a node."""

from __future__ import annotations

import dataclasses

import pytest

from dpdoctor.analysis.loader.budget import Budget, budget, settings
from dpdoctor.analysis.loader.feed import feed
from dpdoctor.analysis.loader.measured import Block, Measured
from dpdoctor.analysis.loader.sharing import Cores
from dpdoctor.analysis.loader.simulate import Setting
from dpdoctor.records import Launch, Sample
from tests.builders import records
from tests.builders.feeding import even_batches, launch, loader, rank

GB = 1_000_000_000
PLENTY = Budget(ranks=1, memory=None, per_worker=1.0, shm=None, per_batch=1.0)


def of(num_cores: float, fetch: float = 1.0, present: int = 0) -> Measured:
    """Return a loader on so many cores, whose fetch takes a part of one."""
    block = Block(fetch=(0.1,), compute=(0.1,))
    cores = Cores(num=num_cores, fetch=fetch)
    return Measured(blocks=(block,), setting=Setting(num_workers=present), cores=cores, send=0.0, receive=0.0)


def workers(found: list[Setting]) -> list[int]:
    return sorted({setting.num_workers for setting in found})


def test_workers_that_compute_are_no_more_than_cores() -> None:
    assert workers(settings(of(2.0), PLENTY)) == [0, 1, 2]
    assert workers(settings(of(12.0), PLENTY)) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12]


def test_one_worker_is_always_looked_at() -> None:
    assert workers(settings(of(0.5), PLENTY)) == [0, 1]


def test_workers_that_wait_may_be_more() -> None:
    assert max(workers(settings(of(2.0, fetch=0.25), PLENTY))) == 8
    assert max(workers(settings(of(2.0, fetch=0.0), PLENTY))) == 40


def test_the_present_setting_is_always_among_them() -> None:
    assert Setting(num_workers=5) in settings(of(2.0, present=5), PLENTY)


def test_without_workers_there_is_nothing_to_prefetch() -> None:
    assert sum(setting.num_workers == 0 for setting in settings(of(2.0), PLENTY)) == 1


def test_memory_and_shared_memory_of_all_ranks_bound_the_workers() -> None:
    tight = dataclasses.replace(PLENTY, ranks=2, memory=4.0 * GB, per_worker=1.0 * GB)
    assert max(workers(settings(of(8.0), tight))) == 2
    narrow = dataclasses.replace(PLENTY, ranks=2, shm=0.1 * GB, per_batch=0.01 * GB)
    found = settings(of(8.0), narrow)
    # 3 workers x 2 ranks x 10 MB x 1.5 = 90 MB with one batch each; with two of them only one worker fits.
    assert {(s.num_workers, s.prefetch_factor) for s in found if s.num_workers} == {(1, 1), (2, 1), (3, 1), (1, 2)}


def sampled(**values: float) -> Launch:
    """Return a launch with two samples of its node, the second of them the given one."""
    rest = dict.fromkeys(values, 0.0)
    samples = (
        Sample(at_ns=0, source="host", values=rest),
        Sample(at_ns=1, source="host", values=values),
        Sample(at_ns=1, source="rank0", values={"memory_bytes": 2.0 * GB, "num_processes": 1.0}),
    )
    return dataclasses.replace(launch(rank(even_batches(8))), samples=samples)


def limits(made: Launch) -> Budget:
    found = feed(made)
    assert found is not None
    return budget(found, made, records.header({"single": 1}))


def test_the_budget_is_what_the_samplers_saw_free() -> None:
    found = limits(sampled(memory_used_bytes=6.0 * GB, shm_total_bytes=4.0 * GB, shm_used_bytes=1.0 * GB))
    assert found.memory == pytest.approx(10 * GB)
    assert found.shm == pytest.approx(3 * GB)
    # No worker was seen: one takes at most what the rank has.
    assert found.per_worker == pytest.approx(2 * GB)


def test_running_workers_say_what_one_takes_and_hold_some_of_what_is_used() -> None:
    made = sampled(memory_used_bytes=6.0 * GB)
    made = dataclasses.replace(
        made,
        ranks=(rank(even_batches(8), loaders=(loader(num_workers=2, prefetch_factor=2),)),),
        samples=(
            *made.samples,
            Sample(at_ns=1, source="rank0.workers", values={"memory_bytes": 1.0 * GB, "num_processes": 2.0}),
        ),
    )
    found = limits(made)
    assert found.per_worker == pytest.approx(0.5 * GB)
    assert found.memory == pytest.approx(11 * GB)


def test_what_nobody_sampled_is_no_limit() -> None:
    found = limits(launch(rank(even_batches(8))))
    assert (found.memory, found.shm) == (None, None)
    assert found.has_room(Setting(num_workers=64, prefetch_factor=8))
