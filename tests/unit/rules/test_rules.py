"""Every rule has a paragraph, a case that fires it and a case that keeps it silent.

tests/unit/rules/test_<rule>.py offers them as FIRES and SILENT, cases by what they show; more than that a rule fires is
tested there.
"""

from __future__ import annotations

import dataclasses

import pytest

from dpdoctor.analysis import Finding, NotJudged
from dpdoctor.rules import Rule, rules
from dpdoctor.rules._base import judge
from tests.builders.cases import case, cases_of, figure
from tests.builders.diagnosed_runs import finding

RULES = rules()


@pytest.mark.parametrize("name", RULES)
def test_a_case_fires_it(name: str) -> None:
    fires = cases_of(name, "FIRES")
    assert fires
    for shown, of in fires.items():
        found = judge(name, RULES[name], of)
        assert isinstance(found, Finding), f"{shown}: {found}"
        assert (found.rule, found.mode) == (name, of.name)


@pytest.mark.parametrize("name", RULES)
def test_a_case_keeps_it_silent(name: str) -> None:
    silent = cases_of(name, "SILENT")
    assert silent
    for shown, of in silent.items():
        assert judge(name, RULES[name], of) is None, shown


@pytest.mark.parametrize(
    ("half", "severity", "is_told"), [(0.39, "critical", 1), (0.41, "critical", 0), (0.41, "info", 1)]
)
def test_a_cost_that_may_be_nothing_is_no_finding_but_a_fact_may_be(half: float, severity: str, is_told: int) -> None:
    cost = figure(0.4, half, "ratio")
    found = finding("any", "single", cost=cost, severity=severity)
    said = judge("any", dataclasses.replace(RULES["data_starved"], check=lambda _: found), case("single"))
    if is_told:
        assert said == found
    else:
        assert isinstance(said, NotJudged)
        assert "40.0 % (-1.0 to 81.0 %)" in said.reason


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_its_paragraph_is_whole(rule: Rule) -> None:
    for text in (rule.title, rule.what, rule.why, rule.how, rule.remedy):
        assert text.strip() == text
        assert text
    for sentence in (rule.what, rule.why, rule.how, rule.remedy):
        assert sentence.endswith(".")


@pytest.mark.parametrize("name", RULES)
def test_a_short_remedy_fits_a_headline_and_has_a_gain(name: str) -> None:
    found = [judge(name, RULES[name], case) for case in cases_of(name, "FIRES").values()]
    for one in [one for one in found if isinstance(one, Finding) and one.short]:
        assert len(one.short or "") <= 80
        assert not (one.short or "").endswith(".")
        assert one.predicted is not None
        assert one.remedy
