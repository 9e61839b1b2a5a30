"""What pairs decide: by hand, against a test that throws every coin, and how often it is wrong."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from dpdoctor.gate.statistics import words
from dpdoctor.gate.statistics.decide import Verdict, decide, obstacle
from dpdoctor.gate.statistics.design import QUICK, sequence
from dpdoctor.gate.statistics.power import capability
from tests.builders.noises import QUIET, log_ratios, noise, pairs

PLAN = sequence()
LIMITS = capability(PLAN, QUIET.pair_sd, 0.05)


def decided(values: list[float], **changes) -> Verdict:
    return decide(values, **{"plan": PLAN, "noise": QUIET, "asked": 0.05, **changes})


class TestOneMode:
    def test_a_clear_slowdown_is_found_at_the_first_look(self):
        found = decided(pairs(0.10, 7))
        assert (found.outcome, found.final, found.alpha, found.fail_alpha) == ("regressed", True, 0.01, 0.01)
        assert found.effect.value == pytest.approx(1.10, rel=0.001)
        # Seven pairs bound at 0.01 with the smallest and the largest of them.
        assert found.effect.low == pytest.approx(1.10 * math.exp(-0.012))
        assert found.effect.high == pytest.approx(1.10 * math.exp(0.011))
        assert (found.effect.unit, found.effect.n, found.effect.scope) == ("x", 7, "launches")

    def test_no_slowdown_passes_at_the_first_look_and_says_what_it_would_have_found(self):
        found = decided(pairs(0.0, 7))
        assert (found.outcome, found.final) == ("pass", True)
        assert found.mde == pytest.approx(0.052, abs=0.001)
        assert found.effect.value == pytest.approx(1.0, abs=0.0005)
        assert (found.effect.low, found.effect.high) == pytest.approx((math.exp(-0.012), math.exp(0.011)))
        assert found.reason == words.passed(found.effect, LIMITS, 0.05)

    def test_a_speedup_passes(self):
        found = decided(pairs(-0.2, 7))
        assert found.outcome == "pass"
        assert (found.effect.value, found.effect.n) == (pytest.approx(0.8, abs=0.0005), 7)
        assert (found.effect.low, found.effect.high) == pytest.approx((0.790, 0.809), abs=0.0005)
        assert found.reason == words.passed(found.effect, LIMITS, 0.05)

    @pytest.mark.parametrize("num", [0, 1, 6, 8, 11, 13, 19])
    @pytest.mark.parametrize("slowdown", [0.0, 0.5])
    def test_nothing_is_judged_between_the_looks(self, num, slowdown):
        found = decided(pairs(slowdown, num))
        assert (found.outcome, found.final) == ("inconclusive", False)

    def test_without_pairs_there_is_no_effect(self):
        found = decided([])
        assert (found.effect.value, found.effect.n) == (None, 0)
        assert "no pair" in found.effect.reason
        assert found.reason == words.goes_on(found.effect, PLAN)
        assert found.effect.reason in found.reason
        assert "7 pairs" in found.reason

    def test_few_pairs_have_an_effect_and_no_bounds(self):
        found = decided(pairs(0.10, 3))
        assert (found.effect.low, found.effect.high, found.effect.n) == (None, None, 3)
        assert found.effect.value == pytest.approx(1.101, abs=0.0005)
        assert found.reason == words.goes_on(found.effect, PLAN)
        assert "7 pairs" in found.reason

    def test_a_change_at_the_tolerance_goes_on_to_the_end_and_is_left_open(self):
        # Wider than the noise that was calibrated, so that the bounds stay on both sides of the tolerance.
        wide = [math.log(1.045) + 4 * away for away in pairs(0.0, 20)]
        for num in (7, 12):
            assert (decided(wide[:num]).outcome, decided(wide[:num]).final) == ("inconclusive", False)
        found = decided(wide)
        assert (found.outcome, found.final) == ("inconclusive", True)
        assert found.reason == words.undecided(found.effect, PLAN, LIMITS, 0.05)

    def test_slower_for_certain_but_by_less_than_the_tolerance_is_no_regression(self):
        found = decided(pairs(0.04, 20))
        assert found.outcome == "pass"
        assert found.effect.low > 1

    def test_one_launch_that_was_held_up_makes_seven_pairs_unsure_and_not_twelve(self):
        values = pairs(0.10, 12)
        values[3] = -0.05
        assert [decided(values[:num]).outcome for num in (7, 12)] == ["inconclusive", "regressed"]
        values = pairs(0.0, 12)
        values[3] = 0.06
        assert [decided(values[:num]).outcome for num in (7, 12)] == ["inconclusive", "pass"]

    def test_a_tolerance_is_relative_and_exact_at_its_edge(self):
        assert decided([math.log1p(0.05)] * 7).outcome == "regressed"
        assert decided([math.log1p(0.05) - 1e-9] * 7).outcome == "pass"

    @given(st.lists(st.floats(-0.1, 0.2), min_size=7, max_size=7, unique=True))
    def test_it_is_the_signed_rank_test_at_half_the_tolerance_and_at_all_of_it(self, values):
        tolerance = math.log1p(0.05)
        estimate = np.median([(a + b) / 2 for i, a in enumerate(values) for b in values[i:]])
        is_slower = _p([value - tolerance / 2 for value in values]) <= 0.01
        is_less = _p([tolerance - value for value in values]) <= 0.01
        expected = "regressed" if is_slower and estimate >= tolerance else "pass" if is_less else "inconclusive"
        assert decided(values).outcome == expected


def _p(differences: list[float]) -> float:
    """Return by all throws of the coins how probable it is that so much rank is above 0; zeros are against it."""
    ranks = scipy.stats.rankdata(np.abs(differences), method="ordinal")
    above = ranks[np.array(differences) > 0].sum()
    by_chance = [
        sum(rank for rank, up in zip(ranks, ups, strict=True) if up) for ups in itertools.product((0, 1), repeat=7)
    ]
    return float(np.mean(np.array(by_chance) >= above))


class TestTheMachine:
    def test_noise_widens_the_tolerance_and_the_reason_says_so(self):
        # At 20 pairs and alpha 0.025 an interval reaches about 0.47 standard deviations to each side.
        found = decided(pairs(0.0, 7), noise=noise(0.07))
        assert found.tolerance == pytest.approx(math.expm1(2 * 0.47 * 0.07), rel=0.05)
        assert found.asked == 0.05
        assert found.reason == words.passed(found.effect, capability(PLAN, 0.07, 0.05), 0.05)
        assert {"5.0 %", "6.9 %"} <= set(re.findall(r"[\d.]+ %", found.reason))

    def test_where_it_cannot_find_twice_the_tolerance_nothing_is_judged_and_the_way_out_is_one(self):
        loud = noise(0.12)
        for slowdown in (0.0, 1.0):
            found = decided(pairs(slowdown, 7), noise=loud)
            assert (found.outcome, found.final) == ("inconclusive", True)
        why = obstacle(PLAN, loud, 0.05)
        assert why == found.reason
        limits = capability(PLAN, 0.12, 0.05)
        needed = limits.pairs_needed
        assert why == words.unsupported(PLAN, limits, 0.05, needed)
        assert {"--max-pairs", "--tolerance"} <= set(re.findall(r"--[a-z-]+", why))
        assert needed > 20
        assert f"{needed} pairs" in why
        assert obstacle(sequence(needed), loud, 0.05) is None
        supported = float(re.findall(r"([\d.]+) %", why)[-1]) / 100
        assert obstacle(PLAN, loud, supported) is None
        assert obstacle(PLAN, loud, supported - 0.005) is not None

    def test_quick_is_for_quiet_machines(self):
        quiet, loud = noise(0.012), noise(0.012, run_cv=0.011)
        assert decided(pairs(0.0, 5), plan=QUICK, noise=quiet).outcome == "pass"
        assert decided(pairs(0.10, 5), plan=QUICK, noise=quiet).outcome == "regressed"
        found = decided(pairs(0.10, 5), plan=QUICK, noise=loud)
        assert (found.outcome, found.final) == ("inconclusive", True)
        assert found.reason == words.not_for_quick(0.011, 0.01)
        assert "--quick" in found.reason

    def test_five_pairs_are_too_few_for_two_modes(self):
        assert obstacle(QUICK, QUIET, 0.05, num_modes=1) is None
        why = obstacle(QUICK, QUIET, 0.05, num_modes=2)
        assert why == words.too_many_modes(QUICK, 2)
        assert "5 pairs" in why
        assert "2 modes" in why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"values": [0.0] * 21}, r"\b21 pairs\b.*\b20\b"),
        ({"values": [0.0, math.nan]}, "no number"),
        ({"values": [math.inf]}, "no number"),
        ({"asked": 0.0}, r"tolerance is 0\.0"),
        ({"asked": math.nan}, "tolerance is nan"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, why):
    with pytest.raises(ValueError, match=why):
        decided(changes.pop("values", [0.0]), **changes)


class TestHowOftenItIsWrong:
    """On two kinds of machine, 1,000 gates each: launches drift, and one in twenty is held up by something else."""

    @pytest.mark.parametrize(
        ("machine", "asked", "change", "outcome", "least"),
        [
            ({"run_cv": 0.027, "drift": 0.01}, 0.05, 0.0, "pass", 0.97),
            ({"run_cv": 0.027, "drift": 0.01}, 0.05, 0.10, "regressed", 0.97),
            ({"run_cv": 0.01, "drift": 0.005}, 0.03, 0.0, "pass", 0.99),
            ({"run_cv": 0.01, "drift": 0.005}, 0.03, 0.06, "regressed", 0.98),
        ],
    )
    def test_no_change_passes_and_twice_the_tolerance_is_caught(self, machine, asked, change, outcome, least):
        gates = log_ratios(2, 1000, 20, slowdown=change, **machine)
        calm = noise(math.hypot(math.sqrt(2) * machine["run_cv"], machine["drift"]))
        ended = [_ended(ratios, calm, asked) for ratios in gates]
        assert np.mean([verdict.outcome == outcome for verdict in ended]) >= least
        assert np.mean([verdict.effect.n for verdict in ended]) < 12
        if not change:
            assert np.mean([verdict.outcome == "regressed" for verdict in ended]) <= 0.005

    def test_a_change_of_the_tolerance_itself_is_often_left_open_and_rarely_passed(self):
        gates = log_ratios(3, 1000, 20, slowdown=0.05, run_cv=0.027, drift=0.01)
        ended = [_ended(ratios, noise(0.04), 0.05).outcome for ratios in gates]
        assert ended.count("pass") <= 0.12 * len(ended)
        assert ended.count("regressed") >= 0.5 * len(ended)


def _ended(ratios: np.ndarray, calm, asked: float) -> Verdict:
    """Return the verdict of the look at which a gate stops."""
    looks = (decide(ratios[: look.pairs], plan=PLAN, noise=calm, asked=asked) for look in PLAN.looks)
    return next(verdict for verdict in looks if verdict.final)
