"""Several modes gated together: Holm's shares, who keeps a verdict, and how often any of them is wronged."""

from __future__ import annotations

import numpy as np

from dpdoctor.gate.statistics.decide import Verdict, decide, decide_all
from dpdoctor.gate.statistics.design import sequence
from tests.builders.noises import QUIET, noise, pairs

PLAN = sequence()


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
