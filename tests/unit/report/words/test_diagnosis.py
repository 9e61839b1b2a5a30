"""What a finding costs and what its remedy would give, and how many bottlenecks the report has besides."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dpdoctor.report.words.diagnosis import cost_words, costliest, gain_words, left_to_the_report
from tests.builders import runs
from tests.builders.diagnosed_runs import figure, finding, unknown, with_findings


def test_what_a_finding_costs() -> None:
    assert cost_words(finding()) == "42% (39–45) of each step"
    assert cost_words(finding(share_of="epoch")) == "42% (39–45) of an epoch"
    assert cost_words(finding(cost=unknown("too few steps", "ratio"))) == "unknown: too few steps"


def test_what_a_remedy_would_give() -> None:
    assert gain_words(finding()) == "1.70x (1.60–1.80), estimated"
    measured = finding(speedup_basis="measured")
    assert gain_words(measured) == "1.70x (1.60–1.80), measured"
    assert gain_words(finding(speedup_basis="at most")) == "at most 1.80x"
    unbounded = finding(speedup=replace(figure(1.7, 0.1, "x"), high=None), speedup_basis="at most")
    assert gain_words(unbounded) == "unknown: the cost may be all of the time, so that there is no upper bound"
    assert gain_words(finding(speedup=unknown("no simulation", "x"))) == "unknown: no simulation"
    assert gain_words(finding(speedup=None)) is None


@pytest.mark.parametrize(
    ("number", "said"),
    [(3, ""), (4, "The report has 1 more bottleneck."), (5, "The report has 2 more bottlenecks.")],
)
def test_how_many_more_the_report_has(number: int, said: str) -> None:
    found = with_findings(runs.cpu_run(), *(finding(f"rule_{place}") for place in range(number)))
    assert left_to_the_report(found.summary) == said


def test_a_cost_that_is_not_the_share_of_the_verdict_is_told_beside_that() -> None:
    (found,) = costliest(with_findings(runs.cpu_run(), finding(cost=figure(0.10, 0.01, "ratio"))).summary)
    (cost,) = found.treatments[0].costs
    assert cost.startswith("ddp: it takes 42% of each step, and without it a step is 10% (9.0–11) shorter, confirmed;")
