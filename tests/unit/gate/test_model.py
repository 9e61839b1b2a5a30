from __future__ import annotations

from itertools import permutations

import pytest

from dpdoctor import __version__
from dpdoctor.analysis import Figure
from dpdoctor.gate.model import EXIT_CODES, ExactResult, ModeResult, Outcome, Refusal, Side, result, worst

SIDE = Side(label="base", command=(), fingerprint=None)
HARD = Refusal(field="torch", base="2.15", head="2.16", remedy="install it")
SOFT = Refusal(field="host", base="a", head="b", remedy="nothing", hard=False)


def mode(outcome: Outcome) -> ModeResult:
    effect = Figure(value=1.0, unit="x")
    return ModeResult(outcome=outcome, reason="so", effect=effect, tolerance=0.05, asked=0.05, alpha=0.01, mde=None)


def test_the_worst_part_decides_in_any_order() -> None:
    order: tuple[Outcome, ...] = ("regressed", "refused", "inconclusive", "pass")
    for place, outcome in enumerate(order):
        assert {worst(found) for found in permutations(order[place:])} == {outcome}


@pytest.mark.parametrize(("outcome", "code"), [("pass", 0), ("regressed", 3), ("inconclusive", 4), ("refused", 4)])
def test_exit_codes(outcome: Outcome, code: int) -> None:
    assert EXIT_CODES[outcome] == code


def test_nothing_judged_is_no_pass() -> None:
    assert result("paired", SIDE, SIDE).outcome == "inconclusive"
    assert result("paired", SIDE, SIDE, refusals=[SOFT]).outcome == "inconclusive"
    assert result("paired", SIDE, SIDE, refusals=[HARD]).outcome == "refused"


def test_parts_are_put_together() -> None:
    exact = ExactResult(outcome="regressed", reason="so", compared=1)
    found = result("exact", SIDE, SIDE, modes={"ddp": mode("pass")}, exact={"ddp": exact}, refusals=[SOFT])
    assert (found.outcome, found.dpdoctor, found.refusals) == ("regressed", __version__, (SOFT,))
    passed = result("paired", SIDE, SIDE, modes={"ddp": mode("pass")}, refusals=[SOFT], remarks=["hm"])
    assert (passed.outcome, passed.remarks) == ("pass", ("hm",))
