"""Every rule has a paragraph, a case that fires it and a case that keeps it silent.

tests/unit/rules/test_<rule>.py offers them as FIRES and SILENT, cases by what they show; more than that a rule fires is
tested there.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from dpdoctor.analysis import Finding
from dpdoctor.rules import Case, Rule, rules
from dpdoctor.rules._base import judge

RULES = rules()


def cases(name: str, kind: str) -> dict[str, Case]:
    """Return the cases of one kind that the rule's test file offers."""
    found: dict[str, Case] = getattr(importlib.import_module(f"tests.unit.rules.test_{name}"), kind)
    return found


@pytest.mark.parametrize("name", RULES)
def test_a_case_fires_it(name: str) -> None:
    fires = cases(name, "FIRES")
    assert fires
    for shown, case in fires.items():
        finding = judge(name, RULES[name], case)
        assert isinstance(finding, Finding), f"{shown}: {finding}"
        assert (finding.rule, finding.mode) == (name, case.name)


@pytest.mark.parametrize("name", RULES)
def test_a_case_keeps_it_silent(name: str) -> None:
    silent = cases(name, "SILENT")
    assert silent
    for shown, case in silent.items():
        assert judge(name, RULES[name], case) is None, shown


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_its_paragraph_is_whole(rule: Rule) -> None:
    for text in (rule.title, rule.what, rule.why, rule.how, rule.remedy):
        assert text.strip() == text
        assert text
    for sentence in (rule.what, rule.why, rule.how, rule.remedy):
        assert sentence.endswith(".")


def test_the_readme_names_the_rules_that_nothing_planted_has_shown_yet() -> None:
    _, _, after = (Path(__file__).parents[3] / "README.md").read_text().partition("<!-- not verified -->")
    named = re.findall(r"`(\w+)`", after.partition(".")[0])
    assert named == [name for name, rule in RULES.items() if not rule.verified]


@pytest.mark.parametrize("name", RULES)
def test_a_short_remedy_fits_a_headline_and_has_a_gain(name: str) -> None:
    found = [judge(name, RULES[name], case) for case in cases(name, "FIRES").values()]
    for finding in [finding for finding in found if isinstance(finding, Finding) and finding.short]:
        assert len(finding.short or "") <= 80
        assert not (finding.short or "").endswith(".")
        assert finding.predicted is not None
        assert finding.remedy
