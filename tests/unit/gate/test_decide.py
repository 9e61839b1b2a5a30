"""What pairs decide: by hand, against a test that throws every coin, and how often it is wrong."""

from __future__ import annotations

import functools
import itertools
import math
import re

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dpdoctor.analysis import Figure
from dpdoctor.gate import decide as words
from dpdoctor.gate.decide import Verdict, by_all_windows, decide, decide_all, obstacle
from dpdoctor.gate.design import QUICK, Capability, capability, sequence
from dpdoctor.gate.model import Pair
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


def launched(shown: list[float]) -> list[Pair]:
    """Return pairs that are alike in the faster half of their windows, and by all windows as these log ratios say."""
    alternate = itertools.cycle(("AB", "BA"))
    return [
        Pair(base_s=0.1, head_s=0.1, base_shown_s=0.1, head_shown_s=0.1 * math.exp(ratio), order=order)
        for ratio, order in zip(shown, alternate, strict=False)
    ]


class TestAllWindows:
    """What the faster half of the windows does not show."""

    def held(self, shown: list[float], *, slowdown: float = 0.0, **fields) -> Verdict:
        calm = replace(QUIET, shown_pair_sd=0.01, **fields)
        return by_all_windows(decided(pairs(slowdown, 7)), launched(shown), plan=PLAN, noise=calm)

    def test_slow_steps_that_come_only_now_and_then_keep_it_from_passing(self):
        found = self.held(pairs(0.12, 7))
        assert (found.outcome, found.final) == ("inconclusive", True)
        assert found.effect == decided(pairs(0.0, 7)).effect
        assert "the step takes 0.0% longer (-1.2 to 1.1%, 7 pairs) in the faster half" in found.reason
        assert "by all of them the step takes 12% longer (11–13%, 7 pairs)" in found.reason

    def test_alike_by_all_windows_passes_as_before(self):
        assert self.held(pairs(0.0, 7)) == decided(pairs(0.0, 7))

    def test_less_than_is_allowed_passes(self):
        assert self.held(pairs(0.04, 7)).outcome == "pass"

    def test_a_regression_is_one_whatever_all_windows_say(self):
        assert self.held(pairs(0.0, 7), slowdown=0.10) == decided(pairs(0.10, 7))

    def test_pairs_that_do_not_count_and_those_after_the_look_are_not_asked(self):
        slow = replace(launched([1.0])[0], replaced="throttled")
        told = [slow, *launched(pairs(0.0, 7)), *launched([1.0] * 5)]
        passes = decided(pairs(0.0, 7))
        assert by_all_windows(passes, told, plan=PLAN, noise=QUIET) == passes

    @pytest.mark.parametrize("of_pairs", [0.20, None])
    def test_windows_that_spread_must_be_slower_by_more(self, of_pairs):
        loud = replace(QUIET, shown_pair_sd=of_pairs, shown_cv=0.20 / math.sqrt(2))
        passes = decided(pairs(0.0, 7))
        assert by_all_windows(passes, launched(pairs(0.12, 7)), plan=PLAN, noise=loud) == passes

    def test_equal_code_passes_all_the_same(self):
        calm = replace(QUIET, shown_pair_sd=0.06)
        gates = log_ratios(6, 1000, 7, run_cv=0.04, drift=0.01)
        passes = decided(pairs(0.0, 7))
        kept = [by_all_windows(passes, launched(gate.tolist()), plan=PLAN, noise=calm) is passes for gate in gates]
        assert np.mean(kept) >= 0.99


class TestTheMachine:
    def test_noise_widens_the_tolerance_and_the_reason_says_so(self):
        # At 20 pairs and alpha 0.025 an interval reaches about 0.47 standard deviations to each side.
        found = decided(pairs(0.0, 7), noise=noise(0.07))
        assert found.tolerance == pytest.approx(math.expm1(2 * 0.47 * 0.07), rel=0.05)
        assert found.asked == 0.05
        assert found.reason == words.passed(found.effect, capability(PLAN, 0.07, 0.05), 0.05)
        assert {"5.0%", "6.9%"} <= set(re.findall(r"[\d.]+%", found.reason))

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
        supported = float(re.findall(r"([\d.]+)%", why)[-1]) / 100
        assert obstacle(PLAN, loud, supported) is None
        assert obstacle(PLAN, loud, supported - 0.005) is not None

    @pytest.mark.parametrize("sd", np.arange(0.13, 0.6, 0.023))
    def test_the_tolerance_that_it_is_told_to_allow_is_one(self, sd):
        told = re.findall(r"allow ([\d.]+)%", obstacle(PLAN, noise(sd), 0.05), re.IGNORECASE)
        assert obstacle(PLAN, noise(sd), float(told[-1]) / 100) is None

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


def test_each_needs_more_certainty_for_a_regression_and_none_for_a_pass():
    ratios = {"ddp": pairs(0.10, 7), "fsdp": pairs(0.0, 7)}
    first = _judged(ratios)
    # 7 pairs cannot reach the half of 0.01.
    assert (first["ddp"].outcome, first["ddp"].final) == ("inconclusive", False)
    assert first["ddp"].effect.low is None
    assert (first["fsdp"].outcome, first["fsdp"].alpha, first["fsdp"].fail_alpha) == ("pass", 0.01, 0.005)
    second = _judged({**ratios, "ddp": pairs(0.10, 12)}, first)
    assert (second["ddp"].outcome, second["ddp"].fail_alpha) == ("regressed", 0.0075)
    assert second["fsdp"] is first["fsdp"]


def test_a_mode_that_fails_leaves_its_share_to_the_others():
    # Ranks 1 to 4 of twelve are against it: 43 of 4,096 throws give as little, which is more than 0.0075.
    weak = [*pairs(0.10, 8), -0.07, -0.06, -0.05, -0.04]
    assert decide(weak, plan=PLAN, noise=QUIET, asked=0.01).outcome == "regressed"
    assert decide(weak, plan=PLAN, noise=QUIET, asked=0.01, num_modes=2).outcome == "inconclusive"
    found = _judged({"ddp": weak, "fsdp": pairs(0.10, 12)}, asked=0.01)
    assert [found[mode].outcome for mode in ("ddp", "fsdp")] == ["regressed", "regressed"]
    assert [found[mode].fail_alpha for mode in ("ddp", "fsdp")] == [0.015, 0.0075]


def test_they_are_told_in_the_order_they_were_asked_in():
    assert [*_judged({"fsdp": pairs(0, 7), "ddp": pairs(0.1, 7), "single": pairs(0, 7)})] == ["fsdp", "ddp", "single"]


def test_of_three_modes_that_did_not_change_one_is_called_slower_in_at_most_five_gates_of_a_hundred():
    # A tolerance of next to nothing leaves the test alone to keep from false alarms.
    dice, exact, wrong, alone = np.random.default_rng(5), noise(1e-12), 0, 0
    for _ in range(400):
        ratios = {mode: dice.normal(0, 0.01, size=20).tolist() for mode in ("single", "ddp", "fsdp")}
        wrong += _ever_regressed(ratios, exact)
        alone += any(_ever_regressed({mode: values}, exact) for mode, values in ratios.items())
    assert wrong / 400 <= 0.06
    assert alone / 400 >= 0.07


def _judged(
    ratios: dict[str, list[float]], settled: dict[str, Verdict] | None = None, *, asked: float = 0.05
) -> dict[str, Verdict]:
    return decide_all(ratios, settled or {}, plan=PLAN, noise=dict.fromkeys(ratios, QUIET), asked=asked)


def _ever_regressed(ratios: dict[str, list[float]], exact) -> bool:
    settled = {}
    for look in PLAN.looks:
        so_far = {mode: values[: look.pairs] for mode, values in ratios.items()}
        settled = decide_all(so_far, settled, plan=PLAN, noise=dict.fromkeys(ratios, exact), asked=1e-9)
    return any(verdict.outcome == "regressed" for verdict in settled.values())


def effect(value: float, low: float | None = None, high: float | None = None, n: int = 7) -> Figure:
    return Figure(value=value, low=low, high=high, n=n, unit="x", scope="launches")


def limits(tolerance: float = 0.05, mde: float = 0.061) -> Capability:
    return Capability(tolerance=tolerance, mde=mde, pairs_needed=None)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (effect(1.003, 0.995, 1.011), "the step takes 0.3% longer (-0.5 to 1.1%, 7 pairs)"),
        (effect(0.979, 0.965, 0.993), "the step takes 2.1% shorter (-3.5 to -0.7%, 7 pairs)"),
        (effect(1.003, None, 1.011), "the step takes 0.3% longer (at most 1.1%, 7 pairs)"),
        (effect(1.003, n=1), "the step takes 0.3% longer (1 pair)"),
    ],
)
def test_an_effect_is_said_with_the_bounds_that_it_has(of, said):
    assert words.goes_on(of, sequence()).startswith(f"{said}; the next look is after ")


def test_a_pass_says_what_would_have_been_found():
    assert words.passed(effect(1.0, 0.99, 1.01), limits(), 0.05).endswith(
        ", which is surely less than the 5.0% that is allowed; a slowdown of all windows by 6.1% or more would have "
        "been found with a probability of 80%"
    )


def test_a_regression_says_what_is_allowed():
    assert words.regressed(effect(1.098, 1.081, 1.119), limits(), 0.05) == (
        "the step takes 9.8% longer (8.1–12%, 7 pairs); 5.0% is allowed"
    )


def test_what_the_last_look_leaves_open_says_what_to_do():
    said = words.undecided(effect(1.041, 1.009, 1.073, n=20), sequence(), limits(), 0.05)
    assert said.startswith("the step takes 4.1% longer (0.9–7.3%, 20 pairs), which is too close to the 5.0% ")
    assert all(way in said for way in ("(--max-pairs)", "quieten the machine", "(--tolerance)"))


def test_a_quick_gate_that_cannot_tell_is_not_told_to_use_what_goes_not_with_it():
    said = words.undecided(effect(1.007, 0.962, 1.054, n=5), QUICK, limits(), 0.05)
    said += words.unsupported(QUICK, limits(), 0.01, 12)
    assert said.count("leave out --quick") == 2
    assert "--max-pairs" not in said


def test_a_tolerance_that_noise_widened_is_said_in_every_verdict():
    wide, said = limits(tolerance=0.063), "(5.0% was asked for, but the noise of this machine hides more)"
    undecided = functools.partial(words.undecided, plan=sequence())
    for sentence in (words.passed, words.regressed, undecided):
        assert said in sentence(effect(1.0, 0.99, 1.01), limits=wide, asked=0.05)
        assert said not in sentence(effect(1.0, 0.99, 1.01), limits=limits(), asked=0.05)


def test_a_machine_that_is_too_noisy_is_told_its_ways_out():
    assert words.unsupported(sequence(), limits(tolerance=0.12, mde=0.1452), 0.05, 38) == (
        "launches on this machine differ too much to gate at 5.0%: 20 pairs find a slowdown of 15% or more with a "
        "probability of 80%, and must find 10%. About 38 pairs would (--max-pairs), or allow 7.3% "
        "(--tolerance), or use a quieter machine"
    )


def test_a_quick_gate_says_why_it_is_none():
    assert "differ by 1.0% or less; on this one they differ by 1.4%" in words.not_for_quick(0.014, 0.01)
    assert words.too_many_modes(QUICK, 3).startswith("5 pairs cannot show a regression in one of 3 modes")
