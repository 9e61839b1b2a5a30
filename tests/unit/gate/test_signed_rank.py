"""The bounds against what they stand for: a test that throws every coin."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from dpdoctor.gate.signed_rank import bound_rank, least_differences, location, walsh_averages

ALPHAS = (0.01, 0.03, 0.05, 0.1, 0.2)


def signs(n: int) -> np.ndarray:
    """Return all 2**n ways to give n differences a sign."""
    return np.array(list(itertools.product((-1.0, 1.0), repeat=n)))


def p_greater(differences: np.ndarray, centre: float) -> float:
    """Return how probable it is, if differences lie about `centre`, that as much rank lies above it as does."""
    away = differences - centre
    ranks = scipy.stats.rankdata(np.abs(away))
    by_chance = (ranks * (signs(len(away)) > 0)).sum(axis=1)
    return float(np.mean(by_chance >= ranks[away > 0].sum()))


def low(differences: np.ndarray, alpha: float) -> np.ndarray:
    return location(differences, low_alpha=alpha, high_alpha=0.05).low


class TestByHand:
    def test_three_differences(self):
        # Walsh averages 1, 1.5, 2, 2.5, 3, 4; one of eight throws gives no rank, two at most the first.
        found = location(np.array([1.0, 4.0, 2.0]), low_alpha=0.25, high_alpha=0.2)
        assert (found.value, found.low, found.high) == (2.25, 1.5, 4.0)

    def test_each_side_has_an_alpha_of_its_own(self):
        found = location(np.arange(7.0), low_alpha=0.005, high_alpha=0.01)
        assert (found.low, found.high) == (-math.inf, 6.0)

    @pytest.mark.parametrize(
        ("n", "alpha", "critical"),
        # Of the tables of the signed-rank test: the largest sum of ranks that is still significant, one-sided.
        [
            (8, 0.05, 5),
            (10, 0.05, 10),
            (12, 0.025, 13),
            (15, 0.01, 19),
            (20, 0.025, 52),
            (20, 0.05, 60),
            (30, 0.01, 120),
        ],
    )
    def test_critical_values_of_the_tables(self, n, alpha, critical):
        assert bound_rank(n, alpha) == critical + 1

    def test_fewest_differences(self):
        assert [least_differences(alpha) for alpha in (0.05, 0.025, 0.015, 0.01)] == [5, 6, 7, 7]

    def test_no_difference_and_no_alpha_are_refused(self):
        with pytest.raises(ValueError, match="no difference"):
            low(np.array([]), 0.05)
        with pytest.raises(ValueError, match=r"alpha is 0\.5"):
            low(np.arange(9.0), 0.5)


class TestAgainstEveryThrow:
    @pytest.mark.parametrize("n", range(1, 10))
    @pytest.mark.parametrize("alpha", ALPHAS)
    def test_the_bound_is_where_the_test_begins_to_reject(self, n, alpha):
        differences = np.random.default_rng(n).normal(1, 1, size=n)
        bound = low(differences, alpha)
        if bound == -math.inf:
            assert p_greater(differences, -1e6) > alpha
        else:
            assert p_greater(differences, bound - 1e-9) <= alpha < p_greater(differences, bound + 1e-9)

    @given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.sampled_from(ALPHAS))
    def test_ties_and_zeros_never_claim_more_than_alpha(self, sizes, alpha):
        thrown = signs(len(sizes)) * np.array(sizes)
        assert np.mean(low(thrown, alpha) > 0) <= alpha

    @pytest.mark.parametrize("n", [5, 7, 9])
    def test_without_ties_all_of_the_attainable_level_is_used(self, n):
        thrown = signs(n) * 2.0 ** np.arange(n)
        for alpha in ALPHAS:
            ranks_below = [(np.arange(1, n + 1) * (row > 0)).sum() for row in signs(n)]
            attainable = max((p for k in range(99) if (p := np.mean(np.array(ranks_below) < k)) <= alpha), default=0)
            assert np.mean(low(thrown, alpha) > 0) == attainable

    @given(st.lists(st.floats(-1, 1), min_size=5, max_size=12), st.sampled_from(ALPHAS))
    def test_the_upper_bound_is_the_lower_one_seen_in_a_mirror(self, values, alpha):
        differences = np.array(values)
        found = location(differences, low_alpha=0.05, high_alpha=alpha)
        assert found.high == -low(-differences, alpha)
        assert found.low <= found.value <= found.high


@pytest.mark.parametrize("n", [5, 7, 12, 20])
def test_a_bound_above_zero_is_what_scipy_calls_significant(n):
    dice = np.random.default_rng(n)
    verdicts = set()
    for _ in range(100):
        differences = dice.normal(0.5, 1, size=n)
        p = scipy.stats.wilcoxon(differences, alternative="greater", method="exact").pvalue
        for alpha in ALPHAS:
            verdicts.add(p <= alpha)
            assert (low(differences, alpha) > 0) == (p <= alpha)
    assert verdicts == {True, False}


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=8))
def test_walsh_averages_are_the_means_of_all_pairs(values):
    dumb = [(a + b) / 2 for i, a in enumerate(values) for b in values[i:]]
    assert sorted(walsh_averages(np.array(values))) == sorted(dumb)


def test_many_at_once_are_each_one_by_itself():
    rows = np.random.default_rng(0).normal(size=(2, 3, 9))
    at = location(rows, low_alpha=0.02, high_alpha=0.04)
    for place in itertools.product(range(2), range(3)):
        alone = location(rows[place], low_alpha=0.02, high_alpha=0.04)
        assert (at.value[place], at.low[place], at.high[place]) == (alone.value, alone.low, alone.high)


@pytest.mark.parametrize("draw", ["normal", "heavy", "coarse"])
def test_it_is_wrong_as_often_as_it_may_be(draw):
    dice = np.random.default_rng(7)
    noise = {
        "normal": lambda size: dice.normal(size=size),
        "heavy": lambda size: dice.standard_t(2, size=size),
        "coarse": lambda size: np.round(2 * dice.normal(size=size)),
    }[draw](size=(4000, 12))
    wrong = np.mean(low(noise, 0.05) > 0)
    assert wrong <= 0.055
    if draw != "coarse":
        assert wrong >= 0.035
