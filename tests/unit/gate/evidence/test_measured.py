from __future__ import annotations

import dataclasses

import pytest

from dpdoctor.analysis import analyse
from dpdoctor.gate.evidence.measured import (
    compiles,
    num_steps,
    recompilations,
    seconds_per_step,
    shown_seconds_per_step,
    typical_batch,
)
from dpdoctor.records import EventRecord
from tests.builders import launched_runs, records
from tests.builders.launched_runs import SECOND


def test_the_seconds_per_step_are_those_of_the_slowest_rank_in_the_faster_half_of_the_windows() -> None:
    fast, slow = (
        records.rank(
            [records.step(ms, window=n) for n, ms in enumerate(times, 1)],
            [records.window(ms, window=n) for n, ms in enumerate(times, 1)],
            index=index,
            world_size=2,
        )
        for index, times in enumerate([(10, 10, 10), (12, 14, 90)])
    )
    assert seconds_per_step(records.launch(fast, slow)) == pytest.approx(0.013)
    assert shown_seconds_per_step(records.launch(fast, slow)) == pytest.approx((0.012 + 0.014 + 0.090) / 3)


def test_what_a_report_shows_of_a_launch_is_what_analysis_says() -> None:
    ranks = [
        records.rank(
            [records.step(ms, window=n) for n, ms in enumerate(times, 1) for _ in range(n)],
            [records.window(ms * n, window=n) for n, ms in enumerate(times, 1)],
            index=index,
            world_size=2,
        )
        for index, times in enumerate([(10, 11, 30), (12, 14, 13)])
    ]
    launch = records.launch(*ranks, mode="ddp")
    (mode,) = analyse(launched_runs.run(launch)).summary.modes.values()
    # Of the slowest rank in each window: 1, 2 and 3 steps.
    assert shown_seconds_per_step(launch) == mode.step.value == pytest.approx((0.012 + 2 * 0.014 + 3 * 0.030) / 6)


def test_what_holds_up_one_step_in_four_is_in_it() -> None:
    times = (10, 10, 10, 50) * 2
    steps = [records.step(ms, window=1) for ms in times]
    launch = records.launch(records.rank(steps, [records.window(sum(times))]))
    assert seconds_per_step(launch) == pytest.approx(0.020)


def test_a_launch_that_measured_nothing_has_none() -> None:
    launch = records.launch(records.rank([], []))
    assert seconds_per_step(launch) is shown_seconds_per_step(launch) is None
    assert (num_steps(launch), typical_batch(launch), recompilations(launch)) == (0, None, 0)


def test_steps_and_batch() -> None:
    launch = launched_runs.launch(10, batch=48)
    assert num_steps(launch) == launched_runs.WINDOWS * launched_runs.STEPS
    assert typical_batch(launch) == 96


def test_the_last_batch_of_an_epoch_changes_no_batch() -> None:
    steps = [records.step(10, samples_drawn=n) for n in (32, 32, 32, 7)]
    assert typical_batch(records.launch(records.rank(steps, [records.window(40)]))) == 32


def test_batches_of_many_sizes_are_no_batch() -> None:
    steps = [records.step(10, samples_drawn=n) for n in (32, 40, 24, 36)]
    assert typical_batch(records.launch(records.rank(steps, [records.window(40)]))) is None


@pytest.mark.parametrize(("at_s", "times"), [(0.5, 0), (1.0, 1), (1.01, 1), (1.9, 0)])
def test_a_compilation_counts_while_something_is_measured(at_s: float, times: int) -> None:
    events = [
        EventRecord(kind="compile", at_ns=round(at_s * SECOND), step=3),
        EventRecord(kind="gc", at_ns=SECOND, step=3),
    ]
    launch = launched_runs.launch(10, events=events)
    assert recompilations(launch) == times
    assert compiles(launch)


def test_a_script_that_compiles_nothing() -> None:
    assert not compiles(launched_runs.launch(10))
    assert not compiles(dataclasses.replace(launched_runs.launch(10), ranks=()))
