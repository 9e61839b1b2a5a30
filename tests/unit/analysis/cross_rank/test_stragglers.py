"""Who is late: planted patterns are named, chance is not."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dpdoctor.analysis.cross_rank.model import StepLateness
from dpdoctor.analysis.cross_rank.stragglers import find_stragglers, steps_needed
from tests.builders.simulated_ranks import MS

STEP_NS = 100 * MS


def verdict(lateness_ms, *, step_ns=STEP_NS, cause=lambda rank, steps: f"rank {rank} in {len(steps)}"):
    """Judge a matrix of ms, [s, r], of steps numbered from 10."""
    lateness = np.rint(np.array(lateness_ms, float) * MS).astype(np.int64)
    steps = StepLateness(
        steps=np.arange(10, 10 + len(lateness)),
        lateness_ns=lateness,
        wait_ns=np.zeros_like(lateness),
        step_ns=step_ns,
    )
    return find_stragglers(steps, tuple(range(4, 4 + lateness.shape[1])), cause)


def noise(steps=20, ranks=2, ms=1.0, seed=0):
    """Two ranks mirror each other, as lateness against the others does."""
    drawn = np.random.default_rng(seed).normal(0, ms, (steps, ranks))
    return drawn - drawn.mean(axis=1, keepdims=True)


def planted(late, rank, ms=30.0, jitter=1.0, **shape):
    lateness = noise(ms=jitter, **shape)
    lateness[late, rank] += ms
    return lateness


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_rank_that_is_always_late_is_persistent(ranks):
    found = verdict(planted(slice(None), 1, ranks=ranks))
    assert (found.kind, found.rank, found.num_late, found.num_steps) == ("persistent", 5, 20, 20)
    assert found.lateness_ns == pytest.approx(30 * MS, rel=0.05)
    assert found.cause == "rank 5 in 20"
    assert found.events == ()


@pytest.mark.parametrize(("ms", "kind"), [(4, "none"), (6, "persistent")])
def test_one_rank_counts_from_a_twentieth_of_a_step(ms, kind):
    assert verdict(planted(slice(None), 1, ms=ms, jitter=0.1)).kind == kind


@pytest.mark.parametrize(("ms", "kind"), [(9, "none"), (11, "rotating")])
def test_taking_turns_counts_from_a_tenth_of_a_step(ms, kind):
    lateness = noise(ranks=3, ms=0.1)
    lateness[np.arange(20), np.arange(20) % 3] += ms
    assert verdict(lateness).kind == kind


def test_most_of_the_steps_are_enough():
    steps = [step for step in range(20) if step % 7]
    assert verdict(planted(steps, 0)).kind == "persistent"


def test_ranks_that_take_turns_are_rotating_and_none_is_named():
    lateness = noise(ranks=3)
    lateness[np.arange(20), np.arange(20) % 3] += 30
    found = verdict(lateness)
    assert (found.kind, found.rank, found.cause, found.num_late) == ("rotating", None, None, 20)
    assert found.lateness_ns == pytest.approx(30 * MS, rel=0.05)


def test_two_ranks_in_turn_are_rotating_and_not_periodic():
    lateness = noise()
    lateness[np.arange(20), np.arange(20) % 2] += 30
    lateness[np.arange(20), 1 - np.arange(20) % 2] -= 30
    found = verdict(lateness)
    assert (found.kind, found.period, found.events) == ("rotating", None, ())


@pytest.mark.parametrize(("period", "num"), [(2, 10), (4, 5), (5, 4)])
def test_equal_distances_are_a_period(period, num):
    found = verdict(planted(slice(1, None, period), 1))
    assert (found.kind, found.rank, found.period, found.num_late) == ("periodic", 5, period, num)
    assert found.cause == f"rank 5 in {num}"
    assert found.events == ()


def test_three_equal_distances_may_be_chance():
    found = verdict(planted([4, 9, 14], 1, ms=130))
    assert (found.kind, found.period, len(found.events)) == ("single", None, 3)


def test_jitter_between_does_not_hide_a_period():
    lateness = planted(slice(1, None, 4), 1)
    lateness[[3, 8, 10, 14], 0] = 10
    assert verdict(lateness).period == 4


def test_a_pause_stands_alone():
    found = verdict(planted([7], 1, ms=130))
    assert (found.kind, found.rank, found.num_late) == ("single", 5, 1)
    (event,) = found.events
    assert (event.step, event.rank, event.cause) == (17, 5, "rank 5 in 1")
    assert event.lateness_ns == found.lateness_ns == pytest.approx(130 * MS, rel=0.05)


def test_a_pause_on_top_of_a_pattern_is_listed_beside_it():
    lateness = planted(slice(None), 1)
    lateness[7, 1] += 130
    found = verdict(lateness)
    assert found.kind == "persistent"
    assert [(event.step, event.rank) for event in found.events] == [(17, 5)]


def test_pauses_of_several_ranks_name_none():
    lateness = planted([7], 1, ms=130)
    lateness[[3, 12], 0] += 90
    found = verdict(lateness)
    assert (found.kind, found.rank, found.cause) == ("single", None, None)
    assert [event.rank for event in found.events] == [4, 5, 4]


@pytest.mark.parametrize("ranks", [2, 4, 64])
@pytest.mark.parametrize("seed", range(20))
def test_calm_runs_are_silent(ranks, seed):
    # The last of 64 is 2.3 standard deviations behind the usual.
    found = verdict(noise(ranks=ranks, ms=2.0, seed=seed))
    assert (found.kind, found.rank, found.events) == ("none", None, ())


@pytest.mark.parametrize("ranks", [2, 4])
def test_jitter_however_large_makes_no_culprit(ranks):
    kinds = [verdict(noise(ranks=ranks, ms=30.0, seed=seed)).kind for seed in range(300)]
    assert kinds.count("persistent") <= 3, "one in a hundred: ALPHA"
    assert kinds.count("periodic") <= 3


def test_what_a_scheduler_may_take_makes_nobody_late():
    assert verdict(planted(slice(None), 1, ms=0.9, jitter=0.01), step_ns=5 * MS).kind == "none"
    assert verdict(planted(slice(None), 1, ms=1.1, jitter=0.01), step_ns=5 * MS).kind == "persistent"


def test_few_steps_are_not_judged_unless_nobody_is_late():
    lateness = planted(slice(None), 1, steps=7)
    found = verdict(lateness)
    assert (found.kind, found.rank, found.num_late) == ("unknown", None, 7)
    assert re.findall(r"\d+", found.reason) == ["8", "7"]
    assert verdict(noise(steps=7)).kind == "none"


def test_nothing_to_judge_is_unknown():
    assert verdict(np.empty((0, 2)), step_ns=None).kind == "unknown"
    assert verdict(np.zeros((20, 1))).kind == "unknown"


@pytest.mark.parametrize(("ranks", "steps"), [(2, 8), (3, 6), (4, 5), (1000, 5)])
def test_steps_needed(ranks, steps):
    assert steps_needed(ranks) == steps
