"""Analysis -> Analysis with findings: every rule asked about every mode."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator

from dpdoctor import plugins, units
from dpdoctor.analysis import Analysis, Finding, ModeSummary, NotJudged
from dpdoctor.analysis.own_cost import is_too_much
from dpdoctor.rules._base import Case, Rule, faster_without, judge
from dpdoctor.rules._cores import others

# A gain that is this part of a larger one is about as large: predictions are known no better.
ALIKE = 0.8
# A finding must cost so many times what watching costs.
LEAST_TIMES_OWN = 3.0
OURS = "watching the script takes {} of a step, which may be a large part of this cost"
# Modes that ended so trained nothing or, inactive, as the baseline did.
_NOT_JUDGED = frozenset({"failed", "skipped", "inactive"})


def rules() -> dict[str, Rule]:
    """Return every rule by its name."""
    from dpdoctor import rules as package

    return plugins.collect(package, "RULE")


def diagnose(analysis: Analysis) -> Analysis:
    """Return the analysis with what the rules find, what gives most first, and with what they could not judge.

    Modes of which nothing was measured say why themselves; rules are asked about the others.
    """
    modes, known = analysis.summary.modes, rules()
    cases = [Case(analysis=analysis, name=name) for name, mode in modes.items() if _is_measured(mode)]
    said = [_unless_ours(judge(name, rule, case), case) for case in cases for name, rule in known.items()]
    taken = {case.name: others(case) for case in cases}
    findings = in_order(_bounded(_beside(taken[s.mode], s)) for s in said if isinstance(s, Finding))
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


def _beside(taken: str | None, finding: Finding) -> Finding:
    """Return a finding that tells what else ran while it was measured."""
    if taken is None or (finding.cause or "").startswith(taken):
        return finding
    return dataclasses.replace(finding, evidence=(*finding.evidence, f"{taken} while this was measured"))


def _bounded(finding: Finding) -> Finding:
    """Return a finding whose cost is no more than all of the time, as far as its interval may reach."""
    cost = finding.cost
    if cost.high is None or cost.high <= 1 or cost.value is None or cost.value > 1:
        return finding
    return dataclasses.replace(finding, cost=dataclasses.replace(cost, high=1.0))


def _is_measured(mode: ModeSummary) -> bool:
    return mode.status not in _NOT_JUDGED and (mode.step.value is not None or mode.budget is not None)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return what is to be mended first, by what that gives, then mere facts, then what was refuted.

    Of gains that are about alike, one that was measured comes first, or a cost that is confirmed.
    """
    levels: defaultdict[tuple[bool, bool], list[Finding]] = defaultdict(list)
    for finding in findings:
        levels[finding.status == "refuted", finding.severity == "info"].append(finding)
    return [finding for level in sorted(levels) for finding in _by_gain(levels[level])]


def _by_gain(findings: list[Finding]) -> Iterator[Finding]:
    left = sorted(findings, key=_gain, reverse=True)
    while left:
        most = _gain(left[0])
        alike = [finding for finding in left if _gain(finding) >= min(most, ALIKE * most)]
        first = max(alike, key=lambda finding: (finding.gain == "measured", finding.status == "confirmed"))
        left = [finding for finding in left if finding is not first]
        yield first


def _gain(finding: Finding) -> float:
    """Return by how much throughput grows with the remedy; where nobody predicted that, without all of the cost."""
    gain = finding.predicted if finding.predicted is not None else faster_without(finding.cost)
    return (gain.value or 1.0) - 1.0
