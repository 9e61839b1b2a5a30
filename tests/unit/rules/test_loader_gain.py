from __future__ import annotations

import pytest

from dpdoctor.rules import CannotTell
from dpdoctor.rules.loader_gain import RULE
from tests.builders import cases


def gaining(speedup: float, control_s: float | None, **fields: object) -> cases.Case:
    """Return ddp on two ranks against a single device of 100 ms, and what that takes with two workers."""
    control = None if control_s is None else cases.prediction(2, control_s)
    known = {"speedup": cases.figure(speedup, 0.05, "x"), "loader": cases.loader(baseline_same_workers=control)}
    return cases.case("ddp", world_size=2, single={}, **{**known, **fields})


FIRES = {"all of it": gaining(1.6, 0.055), "most of it": gaining(1.6, 0.067)}
SILENT = {
    "little of it": gaining(1.9, 0.08),
    "no starving": gaining(1.9, 0.1),
    "no gain": gaining(0.9, 0.055),
    "no gain for certain": gaining(1.04, 0.055),
    "no control": gaining(1.6, None),
    "no loader": gaining(1.6, 0.055, loader=None),
    "no baseline": cases.case("ddp", world_size=2, speedup=cases.unknown("x")),
}


def test_with_equal_workers_the_second_device_costs() -> None:
    found = RULE.check(FIRES["all of it"])
    assert found.severity == "info"
    assert found.title.endswith("1.82x")
    # 1.6 / (100 / 55) = 0.88 of one device, of two that would be 2.
    assert found.cost.value == pytest.approx(1 - 0.88 / 2)
    assert "num_workers=2" in found.code


def test_one_device_is_to_have_no_more_workers_than_give_as_much() -> None:
    """Of sixteen workers, as many as eight ranks have, three do the work: the baseline's own finding says so, too."""
    steps_s = {1: 0.1, 2: 0.08, 3: 0.0555, 4: 0.055, 8: 0.055}
    single = {"loader": cases.loader(predictions=tuple(cases.prediction(n, s) for n, s in steps_s.items()))}
    control = cases.loader(baseline_same_workers=cases.prediction(16, 0.055))
    found = RULE.check(
        cases.case("ddp", world_size=8, single=single, speedup=cases.figure(1.6, 0.05, "x"), loader=control)
    )
    assert "16 workers" in found.title
    assert found.code == "DataLoader(..., num_workers=3)"


def test_a_baseline_without_a_step_time_cannot_be_told_from() -> None:
    case = gaining(1.6, 0.055)
    case = cases.case_of(cases.with_mode(case.analysis, "single", step=cases.unknown()), "ddp")
    assert isinstance(RULE.check(case), CannotTell)
