"""The histogram of steps, against counting them one by one."""

from __future__ import annotations

import random

from dpdoctor.report.launches import NamedLaunch
from dpdoctor.report.views.steps import LEAST_STEPS, MOST_NAMED, bins, step_histogram, steps_of
from tests.builders.records import launch, rank, step, window


def named(*milliseconds: list[float]) -> NamedLaunch:
    """Return a launch whose ranks took these steps in one window."""
    ranks = [
        rank(
            [step(ms, step=place) for place, ms in enumerate(of, 1)],
            [window(sum(of), num_steps=len(of))],
            index=index,
            world_size=len(milliseconds),
        )
        for index, of in enumerate(milliseconds)
    ]
    return NamedLaunch(mode="ddp", title="ddp", launch=launch(*ranks, mode="ddp"))


def test_every_step_is_on_a_bar_or_named() -> None:
    draw = random.Random(5)
    for _ in range(100):
        steps = {number: draw.randrange(1, 1000) ** draw.choice((1, 2)) for number in range(draw.randrange(1, 200))}
        found = bins(steps)
        assert sum(found.counts) + len(found.far_off) == len(steps)
        for place, count in enumerate(found.counts):
            low, high = found.edges_ns[place : place + 2]
            is_last = place == len(found.counts) - 1
            inside = [ns for ns in steps.values() if low <= ns < high or (is_last and ns == high)]
            assert len(inside) == count
        assert all(ns > found.edges_ns[-1] and steps[number] == ns for number, ns in found.far_off)


def test_a_step_far_off_is_named_by_its_number() -> None:
    chart = step_histogram(named([10.0, 11.0] * 20 + [90.0]))[0]
    assert "step 41 (90.0 ms)" in chart.how_to_read
    assert "step 41 (90.0 ms)" in chart.alternative
    assert sum(chart.traces[0]["y"]) == 40


def test_steps_that_are_alike_have_none_far_off() -> None:
    assert "No step is far off" in step_histogram(named([10.0] * 20))[0].how_to_read


def test_a_step_is_that_of_the_slowest_rank() -> None:
    assert list(steps_of(named([10.0, 12.0], [11.0, 9.0])).values()) == [11_000_000, 12_000_000]


def test_many_far_off_are_counted() -> None:
    chart = step_histogram(named([10.0, 11.0] * 200 + [90.0] * (MOST_NAMED + 3)))[0]
    assert " and 3 more" in chart.how_to_read


def test_a_few_steps_have_no_histogram() -> None:
    assert step_histogram(named([10.0] * (LEAST_STEPS - 1))) == []
