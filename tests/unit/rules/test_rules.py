"""Every rule has a paragraph, a case that fires it and a case that keeps it silent.

tests/unit/rules/test_<rule>.py offers them as FIRES and SILENT, cases by what they show; more than that a rule fires is
tested there.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import dpdoctor
from dpdoctor import rules
from dpdoctor.analysis import Finding, Inconclusive
from dpdoctor.rules import BY_NAME, Rule
from dpdoctor.rules.diagnose import conclusions, told
from dpdoctor.rules.rule import faster_without
from tests.builders import plugins
from tests.builders.cases import case, cases_of, figure
from tests.builders.diagnosed_runs import finding
from tests.unit.import_graph import imports, modules


@pytest.mark.parametrize("name", BY_NAME)
def test_a_case_fires_it(name: str) -> None:
    fires = cases_of(name, "FIRES")
    assert fires
    for shown, of in fires.items():
        found = conclusions(of)[name]
        assert isinstance(found, Finding), f"{shown}: {found}"
        assert (found.rule, found.mode) == (name, of.name)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_case_keeps_it_silent(name: str) -> None:
    silent = cases_of(name, "SILENT")
    assert silent
    for shown, of in silent.items():
        assert conclusions(of)[name] is None, shown


@pytest.mark.parametrize(
    ("half", "severity", "is_told"), [(0.39, "critical", 1), (0.41, "critical", 0), (0.41, "info", 1)]
)
def test_a_cost_that_may_be_nothing_is_no_finding_but_a_fact_may_be(half: float, severity: str, is_told: int) -> None:
    cost = figure(0.4, half, "ratio")
    found = finding("any", "single", cost=cost, severity=severity)
    said = told("any", found, case("single"))
    if is_told:
        assert said == found
    else:
        assert isinstance(said, Inconclusive)
        assert "40% (-1.0 to 81)" in said.reason


@pytest.mark.parametrize(("value", "half", "low", "high"), [(0.5, 0.25, 4 / 3, 4.0), (0.5, 0.6, 1 / 1.1, None)])
def test_a_cost_that_may_be_all_of_the_step_bounds_no_gain(
    value: float, half: float, low: float, high: float | None
) -> None:
    faster = faster_without(figure(value, half, "ratio"))
    assert (faster.value, faster.low) == (2.0, pytest.approx(low))
    assert faster.high == (high and pytest.approx(high))
    gain = finding(speedup=faster, speedup_basis="at most").gain
    assert gain is not None
    assert gain.value == faster.high
    assert bool(gain.reason) == (high is None)


def test_every_file_that_offers_a_rule_is_listed_under_its_name() -> None:
    modules = [importlib.import_module(f"{rules.__name__}.{name}") for name in plugins.names(rules)]
    offered = {module.__name__.rpartition(".")[2]: module.RULE for module in modules if hasattr(module, "RULE")}
    assert offered == dict(BY_NAME)
    assert [*BY_NAME] == sorted(BY_NAME)


def test_no_rule_imports_another() -> None:
    found = [
        (module, item.target)
        for module, path in modules(Path(dpdoctor.__file__).parent).items()
        if module in {f"{rules.__name__}.{name}" for name in BY_NAME}
        for item in imports(module, path)
        if item.target.startswith(tuple(f"{rules.__name__}.{name}" for name in BY_NAME))
    ]
    assert found == []


@pytest.mark.parametrize("rule", BY_NAME.values(), ids=BY_NAME)
def test_what_may_be_a_part_of_it_are_other_rules(rule: Rule) -> None:
    assert bool(rule.parts) == (rule.beside is not None)
    assert rule.name not in rule.parts
    assert set(rule.parts) <= BY_NAME.keys()


@pytest.mark.parametrize("rule", BY_NAME.values(), ids=BY_NAME)
def test_its_paragraph_is_whole(rule: Rule) -> None:
    for text in (rule.title, rule.what, rule.why, rule.how, rule.remedy):
        assert text.strip() == text
        assert text
    for sentence in (rule.what, rule.why, rule.how, rule.remedy):
        assert sentence.endswith(".")


@pytest.mark.parametrize("name", BY_NAME)
def test_a_short_remedy_fits_a_headline_and_has_a_gain(name: str) -> None:
    found = [conclusions(case)[name] for case in cases_of(name, "FIRES").values()]
    for one in [one for one in found if isinstance(one, Finding) and one.short_remedy]:
        assert len(one.short_remedy or "") <= 80
        assert not (one.short_remedy or "").endswith(".")
        assert one.speedup is not None or BY_NAME[name].is_of_result  # that trains other models, however fast
        assert one.remedy
