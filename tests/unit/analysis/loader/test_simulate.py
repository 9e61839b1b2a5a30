"""The event simulation against a simulation by ticks, and against what can be worked out on paper."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdoctor.analysis.loader.simulate import Cores, Outcome, Setting, Times, simulate
from tests.builders import ticks

PLENTY = Cores(num=1000)


def steady(
    num_workers: int, prefetch_factor: int, cores: Cores = PLENTY, *, fetch: float, compute: float, **times: float
) -> Outcome:
    """Return the outcome of constant times, once the queue is as full as it gets."""
    made = Times(fetch=[fetch], compute=[compute], **times)
    setting = Setting(num_workers=num_workers, prefetch_factor=prefetch_factor)
    # As many from each worker: with constant times they come in bursts.
    return simulate(made, setting, cores, num_batches=120 * max(1, num_workers), settle=40 * num_workers)


whole = st.integers(min_value=0, max_value=9).map(float)
few = st.integers(min_value=0, max_value=3).map(float)
some_times = st.builds(
    Times,
    fetch=st.lists(whole.map(lambda value: value + 1), min_size=1, max_size=12),
    compute=st.lists(whole, min_size=1, max_size=12),
    send=few,
    receive=few,
)
some_setting = st.builds(
    Setting,
    num_workers=st.integers(min_value=1, max_value=5),
    prefetch_factor=st.integers(min_value=1, max_value=4),
    in_order=st.booleans(),
)


@given(some_times, some_setting, st.integers(min_value=1, max_value=60))
def test_it_does_what_ticks_do(times: Times, setting: Setting, num_batches: int) -> None:
    now, waited = ticks.Ticking(times, setting, PLENTY).run(num_batches, 1.0)
    outcome = simulate(times, setting, PLENTY, num_batches=num_batches)
    assert outcome.step * num_batches == pytest.approx(now)
    assert outcome.wait * num_batches == pytest.approx(waited)


some_cores = st.builds(
    Cores,
    num=st.sampled_from([1.0, 1.5, 2.0, 3.0]),
    fetch=st.sampled_from([0.0, 0.25, 1.0]),
    compute=st.sampled_from([0.5, 1.0, 1.7, 2.0]),
    threads=st.sampled_from([1, 2, 3]),
)


@settings(max_examples=40)
@given(some_times, some_setting, some_cores)
def test_it_does_what_ticks_do_where_threads_contend(times: Times, setting: Setting, cores: Cores) -> None:
    # In order only: which of two things is first may hang on the length of a tick.
    setting = Setting(num_workers=setting.num_workers, prefetch_factor=setting.prefetch_factor)
    tick, num_batches = 0.02, 20
    now, waited = ticks.Ticking(times, setting, cores).run(num_batches, tick)
    outcome = simulate(times, setting, cores, num_batches=num_batches)
    # Each of a batch's parts may end up to a tick late.
    assert outcome.step == pytest.approx(now / num_batches, abs=8 * tick)
    assert outcome.wait == pytest.approx(waited / num_batches, abs=8 * tick)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 7])
@pytest.mark.parametrize(("fetch", "compute"), [(10.0, 3.0), (40.0, 3.0), (2.0, 9.0)])
def test_constant_times_with_workers_ahead(num_workers: int, fetch: float, compute: float) -> None:
    outcome = steady(num_workers, 2, fetch=fetch, compute=compute, send=0.5, receive=1.0)
    assert outcome.step == pytest.approx(max(compute + 1.0, (fetch + 0.5) / num_workers))
    assert outcome.wait == pytest.approx(outcome.step - compute)
    assert (outcome.fetch, outcome.compute) == (pytest.approx(fetch), pytest.approx(compute))


@pytest.mark.parametrize("compute", [3.0, 9.0, 30.0])
def test_one_worker_with_one_batch_does_not_fetch_while_its_batch_is_taken(compute: float) -> None:
    outcome = steady(1, 1, fetch=10.0, compute=compute, send=0.5, receive=1.0)
    assert outcome.step == pytest.approx(max(compute, 10.5) + 1.0)


def test_without_workers_one_thing_follows_the_other() -> None:
    outcome = steady(0, 2, fetch=10.0, compute=3.0, send=0.5, receive=1.0)
    assert (outcome.step, outcome.wait) == (pytest.approx(13.0), pytest.approx(10.0))


def test_a_slow_fetch_holds_up_the_ones_behind_it_unless_order_is_given_up() -> None:
    times = Times(fetch=[60.0, *[2.0] * 19], compute=[5.0])
    in_order, out_of_order = (
        simulate(times, Setting(num_workers=2, prefetch_factor=2, in_order=order), PLENTY, num_batches=400, settle=40)
        for order in (True, False)
    )
    assert out_of_order.step == pytest.approx(5.0, rel=0.02)
    assert in_order.step > 1.3 * out_of_order.step
    deep = simulate(times, Setting(num_workers=2, prefetch_factor=16), PLENTY, num_batches=400, settle=40)
    assert deep.step == pytest.approx(5.0, rel=0.02)


def test_no_more_work_is_done_than_there_are_cores() -> None:
    # Two cores, four workers that only compute, and a training thread that hardly does: 42 seconds of work per batch.
    outcome = steady(4, 2, Cores(num=2.0), fetch=40.0, compute=2.0)
    assert outcome.step == pytest.approx(21.0, rel=0.01)
    assert outcome.fetch > 70.0


def test_workers_that_wait_for_a_disk_contend_for_nothing() -> None:
    outcome = steady(8, 2, Cores(num=2.0, fetch=0.0), fetch=40.0, compute=2.0)
    assert outcome.step == pytest.approx(5.0)


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ValueError, match="a fetch and a step"):
        Times(fetch=[], compute=[1.0])
    with pytest.raises(ValueError, match="num_batches"):
        simulate(Times(fetch=[1.0], compute=[1.0]), Setting(num_workers=1), PLENTY, num_batches=0)


def test_with_a_core_for_everyone_nobody_is_slowed() -> None:
    cores = Cores(num=4.0)
    assert cores.fetch_pace(3, 1.0) == 1.0
    assert cores.compute_pace(3) == 1.0
    assert cores.receive_pace(3) == 1.0


def test_single_threads_share_evenly() -> None:
    cores = Cores(num=2.0)
    assert cores.fetch_pace(2, 1.0) == pytest.approx(2 / 3)
    assert cores.compute_pace(2) == pytest.approx(2 / 3)


def test_only_the_computing_part_of_a_fetch_is_slowed() -> None:
    # Four fetches of half a core each and a training thread on one core: what computes takes three times as long.
    cores = Cores(num=1.0, fetch=0.5)
    assert cores.fetch_pace(4, 1.0) == pytest.approx(1 / (0.5 + 0.5 * 3))


def test_a_training_process_that_waits_for_its_device_is_slowed_only_where_it_computes() -> None:
    cores = Cores(num=1.0, compute=0.25)
    assert cores.compute_pace(1) == pytest.approx(1 / (0.75 + 0.25 * 2))


def test_the_slowest_of_several_threads_counts() -> None:
    # Two threads on two cores beside one fetch: one of them has half a core, the other waits for it.
    cores = Cores(num=2.0, compute=2.0, threads=2)
    assert cores.compute_pace(0) == 1.0
    assert cores.compute_pace(1) == pytest.approx(1 / 2)
    assert cores.compute_pace(2) == pytest.approx(1 / 2)
    assert cores.compute_pace(3) == pytest.approx(1 / 3)


def test_between_what_threads_compute_together_one_is_alone() -> None:
    # Together in half of the time: beside one fetch that half takes twice as long, the other as long as before.
    cores = Cores(num=2.0, compute=1.5, threads=2)
    assert cores.compute_pace(1) == pytest.approx(1 / (0.5 + 0.5 * 2))


@pytest.mark.parametrize("fields", [{"num": 0.0}, {"num": 2.0, "threads": 0}, {"num": 2.0, "fetch": -0.1}])
def test_what_cannot_be_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="core"):
        Cores(**fields)
