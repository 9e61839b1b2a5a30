from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from msgspec.structs import replace

from dpdoctor.gate.decide import decide
from dpdoctor.gate.design import (
    ALPHA,
    QUICK,
    Look,
    Plan,
    capability,
    failed,
    false_fail_rate,
    half_width,
    holm_alpha,
    is_too_slow,
    least_effect,
    pairs_needed,
    sequence,
)
from dpdoctor.gate.signed_rank import location
from tests.builders.noises import noise


def looks(plan: Plan) -> list[tuple[int, float]]:
    return [(look.pairs, look.alpha) for look in plan.looks]


def test_the_usual_plan_and_the_quick_one():
    assert looks(sequence()) == [(7, 0.01), (12, 0.015), (20, 0.025)]
    assert sequence().most_run_cv is None
    assert (looks(QUICK), QUICK.most_run_cv) == ([(5, 0.05)], 0.01)


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (7, [(7, 0.05)]),
        (8, [(7, 0.01), (8, 0.04)]),
        (12, [(7, 0.01), (12, 0.04)]),
        (13, [(7, 0.01), (12, 0.015), (13, 0.025)]),
        (46, [(7, 0.01), (12, 0.015), (46, 0.025)]),
    ],
)
def test_another_number_of_pairs_spends_what_is_left_at_its_end(most, expected):
    assert looks(sequence(most)) == expected
    assert sum(look.alpha for look in sequence(most).looks) == pytest.approx(ALPHA)


def test_too_few_pairs_are_refused():
    with pytest.raises(ValueError, match="a gate of 6 pairs cannot tell; it takes 7 at least"):
        sequence(6)
    with pytest.raises(ValueError, match="alpha is 0; it must lie above 0"):
        Look(pairs=7, alpha=0)
    with pytest.raises(ValueError, match=r"6 pairs give no bound at alpha 0\.01; it takes 7"):
        Look(pairs=6, alpha=0.01)


@pytest.mark.parametrize("pairs", [(), (12, 7), (7, 7)])
def test_a_plan_without_an_order_is_refused(pairs):
    with pytest.raises(ValueError, match="each after more pairs"):
        Plan(looks=tuple(Look(pairs=n, alpha=0.01) for n in pairs))


def test_a_plan_that_spends_too_much_is_refused():
    with pytest.raises(ValueError, match=r"the looks spend 0\.06; together they may spend 0\.05"):
        Plan(looks=(Look(pairs=7, alpha=0.03), Look(pairs=9, alpha=0.03)))


def test_looks_are_due_after_their_pairs_and_at_no_other_time():
    plan = sequence()
    assert [n for n in range(30) if plan.is_due(n)] == [7, 12, 20]
    assert [plan.look_for(n).pairs for n in (0, 6, 7, 8, 12, 13, 20, 21)] == [7, 7, 7, 12, 12, 20, 20, 20]
    assert plan.last.pairs == 20


def test_holm_gives_the_share_of_a_failed_mode_to_the_others():
    assert [holm_alpha(0.03, 3, failed) for failed in range(3)] == pytest.approx([0.01, 0.015, 0.03])


PLAN = sequence()


def share_found(pairs: int, alpha: float, sd: float, tolerance: float, slowdown: float) -> float:
    """Return in how many of 4,000 gates of one look a slowdown is called a regression."""
    dice = np.random.default_rng(99)
    at = location(dice.normal(math.log1p(slowdown), sd, size=(4000, pairs)), low_alpha=alpha, high_alpha=alpha)
    return float(np.mean(is_too_slow(at, tolerance)))


@pytest.mark.parametrize("tolerance", [0.0, 0.03, 0.2])
@pytest.mark.parametrize(("pairs", "alpha"), [(5, 0.05), (7, 0.01), (12, 0.015), (20, 0.025)])
def test_the_least_effect_is_found_in_eight_gates_of_ten(pairs, alpha, tolerance):
    effect = least_effect(pairs, alpha, 0.04, tolerance)
    assert share_found(pairs, alpha, 0.04, tolerance, effect) == pytest.approx(0.8, abs=0.025)


def test_it_is_the_textbook_formula_for_many_pairs_and_more_than_that_for_few():
    def by_student(pairs: int, alpha: float) -> float:
        quantiles = scipy.stats.t.ppf([1 - alpha, 0.8], pairs - 1)
        return sum(quantiles) / math.sqrt(pairs)

    small = 1e-3  # where a ratio and its log are alike
    assert least_effect(30, 0.05, small, 0.0) / small == pytest.approx(by_student(30, 0.05), rel=0.06)
    assert by_student(7, 0.01) == pytest.approx(1.53, abs=0.005)
    # The least of 7 normal values must be above 0: their 0.8th part lies above -1.86.
    assert least_effect(7, 0.01, small, 0.0) / small == pytest.approx(scipy.stats.norm.ppf(0.8 ** (1 / 7)), rel=0.03)


def test_no_slowdown_is_found_where_so_few_pairs_give_no_bound():
    assert least_effect(7, 0.005, 0.0, 0.05) == math.inf


def test_half_widths_are_what_intervals_have_on_average():
    # The least of 7 normal values is 1.352 standard deviations below 0 on average.
    assert half_width(7, 0.01, 0.03) == pytest.approx(1.352 * 0.03, rel=0.02)
    assert half_width(20, 0.025, 0.03) == pytest.approx(2.093 / math.sqrt(20) * 0.03, rel=0.06)


class TestCapability:
    def test_on_a_quiet_machine_what_was_asked_is_allowed(self):
        found = capability(PLAN, 0.01, 0.05)
        assert (found.tolerance, found.pairs_needed) == (0.05, None)
        assert 0.05 < found.mde < 0.055

    def test_without_noise_the_tolerance_itself_is_found(self):
        assert capability(PLAN, 0.0, 0.05).mde == pytest.approx(0.05)

    def test_noise_widens_the_tolerance_by_the_last_look_alone(self):
        found = capability(PLAN, 0.06, 0.03)
        assert found.tolerance == pytest.approx(math.expm1(2 * half_width(20, 0.025, 0.06)))
        assert found.tolerance < math.expm1(2 * half_width(7, 0.01, 0.06))

    @pytest.mark.parametrize("sd", [0.1, 0.2])
    def test_the_pairs_that_are_needed_are_enough_and_not_many_more(self, sd):
        found = capability(PLAN, sd, 0.05)
        assert found.mde > 0.10
        assert found.pairs_needed == pairs_needed(0.025, sd, 0.05)
        assert capability(sequence(found.pairs_needed), sd, 0.05).pairs_needed is None
        assert capability(sequence(round(0.85 * found.pairs_needed)), sd, 0.05).pairs_needed is not None

    def test_a_quick_gate_tells_less_than_the_whole_one(self):
        assert capability(QUICK, 0.014, 0.02).mde > capability(PLAN, 0.014, 0.02).mde

    def test_more_modes_at_once_make_it_harder_to_be_sure_of_one(self):
        effects = [least_effect(20, 0.025 / num_modes, 0.05, 0.0) for num_modes in (1, 2, 4)]
        assert effects[0] < effects[1] < effects[2]


def test_a_calibrated_machine_hardly_ever_fails_what_did_not_change():
    assert false_fail_rate(noise(0.03), PLAN, 0.05) <= 0.005


@pytest.mark.parametrize(("slowdown", "least", "most"), [(0.0, 0, 0.001), (0.02, 0.003, 0.012), (0.10, 0.98, 1)])
def test_errors_on_a_noisy_machine_are_those_that_the_rule_names(slowdown: float, least: float, most: float) -> None:
    gates = np.random.default_rng(3).normal(np.log1p(slowdown), 0.06, size=(10_000, 20))
    tolerance = capability(PLAN, 0.06, 0.05).tolerance
    assert least <= np.mean(failed(gates, PLAN, tolerance)) <= most


def test_a_machine_whose_pairs_are_held_up_fails_more():
    # Every third pair is off by 40%, which a robust spread does not say.
    ratios = (0.03, -0.03, 0.4) * 5
    calm = replace(noise(0.01), log_ratios=(0.03, -0.03) * 5)
    jumpy = replace(noise(0.01), log_ratios=ratios)
    assert false_fail_rate(calm, QUICK, 0.05) == 0
    assert 0.0 < false_fail_rate(jumpy, QUICK, 0.05) <= 0.05


def test_the_same_question_has_the_same_answer():
    assert false_fail_rate(noise(0.05), QUICK, 0.01) == false_fail_rate(noise(0.05), QUICK, 0.01)


@pytest.mark.parametrize("slowdown", [0.0, 0.03, 0.06])
def test_many_gates_at_once_decide_as_each_one_by_itself(slowdown):
    calm = noise(0.03)
    gates = np.random.default_rng(8).normal(slowdown, 0.03, size=(60, 20))
    at_once = failed(gates, PLAN, capability(PLAN, calm.pair_sd, 0.03).tolerance)
    alone = []
    for ratios in gates:
        looks = (decide(ratios[: look.pairs], plan=PLAN, noise=calm, asked=0.03) for look in PLAN.looks)
        alone.append(next(verdict.outcome for verdict in looks if verdict.final) == "regressed")
    assert at_once.tolist() == alone
