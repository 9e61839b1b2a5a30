from __future__ import annotations

import dataclasses

import pytest

from dpdoctor.analysis import Analysis, Finding, Inconclusive
from dpdoctor.analysis.comparison import FindingComparison, compare
from tests.builders import runs
from tests.builders.diagnosed_runs import figure, finding, with_modes
from tests.builders.runs_to_compare import even


def diagnosed(*findings: Finding, inconclusive: tuple[Inconclusive, ...] = (), of: Analysis | None = None) -> Analysis:
    found = of or runs.cpu_run()
    summary = dataclasses.replace(found.summary, findings=findings, inconclusive=inconclusive)
    return dataclasses.replace(found, summary=summary)


def compared(base: Analysis, other: Analysis) -> FindingComparison:
    (found,) = compare([base, other]).findings
    return found


def costs(value: float, **fields: object) -> Analysis:
    return diagnosed(finding(cost=figure(value, 0.03, "ratio"), **fields))


REFUTED = finding(status="refuted", severity="info", remedy=None, code=None)


@pytest.mark.parametrize(
    ("base", "other", "change"),
    [
        (diagnosed(), costs(0.4), "appeared"),
        (costs(0.4), diagnosed(), "gone"),
        (costs(0.4), costs(0.6), "more"),
        (costs(0.4), costs(0.2), "less"),
        (costs(0.4), costs(0.41), "alike"),
        (diagnosed(REFUTED), costs(0.4), "appeared"),
        (costs(0.4), diagnosed(REFUTED), "gone"),
    ],
)
def test_a_finding_of_one_mode_in_two_runs(base: Analysis, other: Analysis, change: str) -> None:
    found = compared(base, other)
    assert (found.rule, found.mode, found.of) == ("data_starved", "ddp", "step")
    assert found.changes == (change,)


def test_without_an_interval_a_cost_is_not_called_changed() -> None:
    bare = dataclasses.replace(figure(0.6, 0.03, "ratio"), low=None, high=None)
    assert compared(costs(0.4), diagnosed(finding(cost=bare))).changes == ("unclear",)


def test_a_rule_that_could_not_look_does_not_say_gone() -> None:
    blind = diagnosed(inconclusive=(Inconclusive(rule="data_starved", mode="ddp", reason="no loader was seen"),))
    found = compared(costs(0.4), blind)
    assert found.changes == ("unknown",)
    assert found.runs[1].reason == "no loader was seen"


@pytest.mark.parametrize("other", [even(100), runs.failed_run()])
def test_a_mode_that_is_missing_or_failed_does_not_say_gone(other: Analysis) -> None:
    assert compared(costs(0.4), other).changes == ("unknown",)


def test_an_inactive_mode_was_not_asked() -> None:
    of = runs.cpu_run()
    active = with_modes(of, dp=dataclasses.replace(of.summary.modes["dp"], status="ok"))
    found = compared(diagnosed(finding(mode="dp"), of=active), diagnosed(of=of))
    assert found.changes == ("unknown",)
    assert found.runs[1].reason == "there is no accelerator"


def test_what_every_run_refuted_is_left_out() -> None:
    assert compare([diagnosed(REFUTED), diagnosed(REFUTED)]).findings == ()


def test_a_finding_of_a_withheld_mode_is_withheld_with_it() -> None:
    assert compare([diagnosed(finding(mode="fsdp")), diagnosed()]).findings == ()


def test_a_share_of_an_epoch_is_not_compared_with_one_of_a_step() -> None:
    found = compare([costs(0.4), costs(0.4, share_of="epoch")]).findings
    assert [(one.of, one.changes) for one in found] == [("step", ("gone",)), ("epoch", ("appeared",))]
