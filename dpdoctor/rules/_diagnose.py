"""Analysis -> Analysis with findings: every rule asked about every mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from dpdoctor import plugins, units
from dpdoctor.analysis import Analysis, Finding, ModeSummary, NotJudged
from dpdoctor.analysis.own_cost import is_too_much
from dpdoctor.rules._base import Case, Rule, judge

# Modes that ended so trained nothing or, inactive, as the baseline did.
# A finding must cost so many times what watching costs.
LEAST_TIMES_OWN = 3.0
OURS = "watching the script takes {} of a step, which may be a large part of this cost"
_NOT_JUDGED = frozenset({"failed", "skipped", "inactive"})


def rules() -> dict[str, Rule]:
    """Return every rule by its name."""
    from dpdoctor import rules as package

    return plugins.collect(package, "RULE")


def diagnose(analysis: Analysis) -> Analysis:
    """Return the analysis with what the rules find, most costly first, and with what they could not judge.

    Modes of which nothing was measured say why themselves; rules are asked about the others.
    """
    modes, known = analysis.summary.modes, rules()
    cases = [Case(analysis=analysis, name=name) for name, mode in modes.items() if _is_measured(mode)]
    said = [_unless_ours(judge(name, rule, case), case) for case in cases for name, rule in known.items()]
    findings = sorted((s for s in said if isinstance(s, Finding)), key=lambda found: sort_key(found, modes))
    not_judged = tuple(s for s in said if isinstance(s, NotJudged))
    summary = dataclasses.replace(analysis.summary, findings=tuple(findings), not_judged=not_judged)
    return dataclasses.replace(analysis, summary=summary)


def _unless_ours(said: Finding | NotJudged | None, case: Case) -> Finding | NotJudged | None:
    """Return what a rule said, but no cost of which dpdoctor's own may be a large part."""
    own = case.mode.observer_cost
    if not isinstance(said, Finding) or not is_too_much(own) or own.value is None or said.cost.value is None:
        return said
    if said.of != "step" or said.cost.value > LEAST_TIMES_OWN * own.value:
        return said
    return NotJudged(rule=said.rule, mode=said.mode, reason=OURS.format(units.share(own.value)))


def _is_measured(mode: ModeSummary) -> bool:
    return mode.status not in _NOT_JUDGED and (mode.step.value is not None or mode.budget is not None)


def sort_key(finding: Finding, modes: Mapping[str, ModeSummary]) -> tuple[bool, bool, float]:
    """Return the key that puts what is to be mended first, then by lost time; refuted ones and mere facts come last."""
    return finding.status == "refuted", finding.severity == "info", -_seconds(finding, modes[finding.mode])


def _seconds(finding: Finding, mode: ModeSummary) -> float:
    """Return the time lost per step; a share of an epoch is spread over its steps. Of traces alone, traced time."""
    step = mode.step.value or (mode.budget.step.value if mode.budget else None) or 0.0
    return (finding.cost.value or 0.0) * step
