from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from dpdoctor.gate.statistics.decide import decide
from dpdoctor.gate.statistics.design import QUICK, sequence
from dpdoctor.gate.statistics.false_alarms import failed, false_fail_rate
from dpdoctor.gate.statistics.power import capability
from tests.unit.gate.noises import noise

PLAN = sequence()


def test_a_calibrated_machine_hardly_ever_fails_what_did_not_change():
    assert false_fail_rate(noise(0.03), PLAN, 0.05) <= 0.005


def test_a_machine_whose_pairs_are_held_up_fails_more():
    # The robust spread says 1 %, but every third pair is off by 40 %.
    ratios = (0.01, -0.01, 0.4) * 5
    calm = dataclasses.replace(noise(0.01), log_ratios=(0.01, -0.01) * 5)
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
