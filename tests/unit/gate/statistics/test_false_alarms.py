from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dpdoctor.gate.statistics.decide import decide
from dpdoctor.gate.statistics.design import QUICK, sequence
from dpdoctor.gate.statistics.false_alarms import failed, false_fail_rate
from dpdoctor.gate.statistics.power import capability
from tests.builders.noises import noise

PLAN = sequence()


def test_a_calibrated_machine_hardly_ever_fails_what_did_not_change():
    assert false_fail_rate(noise(0.03), PLAN, 0.05) <= 0.005


@pytest.mark.parametrize(("slowdown", "least", "most"), [(0.0, 0, 0.001), (0.02, 0.003, 0.012), (0.10, 0.98, 1)])
def test_errors_on_a_noisy_machine_are_those_that_the_rule_names(slowdown: float, least: float, most: float) -> None:
    gates = np.random.default_rng(3).normal(np.log1p(slowdown), 0.06, size=(10_000, 20))
    tolerance = capability(PLAN, 0.06, 0.05).tolerance
    assert least <= np.mean(failed(gates, PLAN, tolerance)) <= most


def test_a_machine_whose_pairs_are_held_up_fails_more():
    # Every third pair is off by 40 %, which a robust spread does not say.
    ratios = (0.03, -0.03, 0.4) * 5
    calm = dataclasses.replace(noise(0.01), log_ratios=(0.03, -0.03) * 5)
    jumpy = dataclasses.replace(noise(0.01), log_ratios=ratios)
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
