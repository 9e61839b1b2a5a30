"""Analysis -> Diagnosis: every rule asked about every mode."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import Analysis, Diagnosis, Finding, Inconclusive, ModeFacts, Run, analyse
from dpdoctor.analysis.controls import is_notable
from dpdoctor.rules.catalog import BY_NAME, RULES
from dpdoctor.rules.rule import CannotTell, Said, faster_without

# A gain that is this part of a larger one is about as large: predictions are known no better.
ALIKE = 0.8
# A finding must cost so many times what watching costs.
LEAST_TIMES_OWN = 3.0
OURS = "watching the script takes {} of a step, which may be a large part of this cost"
MAY_BE_NOTHING = "what it would cost, {} by this run, cannot be told from nothing"


def diagnosed(run: Run) -> Diagnosis:
    """Return the figures of a run and what the rules find in it."""
    return diagnose(analyse(run))


def diagnose(analysis: Analysis) -> Diagnosis:
    """Return the analysis with what the rules find, what gives most first, and with what they could not judge.

    Modes of which nothing was measured say why themselves; rules are asked about the others.
    """
    judged = [said for facts in analysis.facts.values() if facts.is_measured for said in conclusions(facts).values()]
    findings = in_order(said for said in judged if isinstance(said, Finding))
    inconclusive = tuple(said for said in judged if isinstance(said, Inconclusive))
    summary = replace(analysis.summary, findings=tuple(findings), inconclusive=inconclusive)
    return Diagnosis(summary=summary, run=analysis.run, cross_rank=analysis.cross_rank)


def conclusions(facts: ModeFacts) -> dict[str, Finding | Inconclusive | None]:
    """Return by rule what is to be told of one mode: None: nothing."""
    return {name: told(name, said, facts) for name, said in ask(facts).items()}


def ask(facts: ModeFacts) -> dict[str, Said]:
    """Return what each rule says of one mode. What one finds is no part any more of what another one does."""
    checked = {rule.name: rule.check(facts) for rule in RULES}
    said = dict(checked)
    for rule in RULES:
        parts = [part for name in rule.parts if isinstance(part := checked[name], Finding)]
        if rule.beside is not None and parts and isinstance(said[rule.name], Finding):
            said[rule.name] = rule.beside(facts, parts)
    return said


def told(name: str, said: Said, facts: ModeFacts) -> Finding | Inconclusive | None:
    """Return what is to be told of what a rule says: no cost that may be nothing, or be dpdoctor's own."""
    if isinstance(said, CannotTell):
        return Inconclusive(rule=name, mode=facts.name, reason=said.reason)
    if said is None:
        return None
    reason = _may_be_nothing(said) or _may_be_ours(said, facts)
    if reason is not None:
        return Inconclusive(rule=name, mode=facts.name, reason=reason)
    return _bounded(_without_doubtful_gain(_beside(facts.others, said)))


def _may_be_nothing(finding: Finding) -> str | None:
    """Return that a cost may be nothing, by its own interval, and so is not known to be one."""
    cost = finding.cost
    if finding.severity == "info" or cost.value is None or cost.low is None or cost.high is None or cost.low > 0:
        return None
    known = units.within(*map(units.share, (cost.value, cost.low, cost.high)))
    return MAY_BE_NOTHING.format(known)


def _may_be_ours(finding: Finding, facts: ModeFacts) -> str | None:
    """Return that dpdoctor's own cost may be a large part of what is found."""
    own = facts.mode.observer_overhead
    if not is_notable(own) or own.value is None or finding.cost.value is None or finding.share_of != "step":
        return None
    return OURS.format(units.share(own.value)) if finding.cost.value <= LEAST_TIMES_OWN * own.value else None


def _beside(taken: str | None, finding: Finding) -> Finding:
    """Return a finding that tells what else ran while it was measured."""
    if taken is None or (finding.cause or "").startswith(taken):
        return finding
    return replace(finding, evidence=(*finding.evidence, f"{taken} while this was measured"))


def _without_doubtful_gain(finding: Finding) -> Finding:
    """Return a finding that promises nothing where what is predicted may be no gain, by its own interval."""
    gain = finding.speedup
    is_doubtful = finding.speedup_basis == "predicted" and gain is not None and gain.low is not None and gain.low <= 1
    return replace(finding, speedup=None) if is_doubtful else finding


def _bounded(finding: Finding) -> Finding:
    """Return a finding whose cost is no more than all of the time, as far as its interval may reach."""
    cost = finding.cost
    if cost.high is None or cost.high <= 1 or cost.value is None or cost.value > 1:
        return finding
    return replace(finding, cost=replace(cost, high=1.0))


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return what is to be mended first, by what that gives, then mere facts, then what was refuted.

    What makes training wrong stands before what makes it slow. Of gains that are about alike, one that was measured
    comes first, or a cost that is confirmed.
    """
    levels: defaultdict[tuple[bool, bool, bool], list[Finding]] = defaultdict(list)
    for finding in findings:
        levels[finding.status == "refuted", finding.severity == "info", not is_of_result(finding)].append(finding)
    return [finding for level in sorted(levels) for finding in _by_gain(levels[level])]


def is_of_result(finding: Finding) -> bool:
    """Return whether it is certain that what is trained is wrong."""
    rule = BY_NAME.get(finding.rule)
    return rule is not None and rule.is_of_result and finding.status == "confirmed"


def _by_gain(findings: list[Finding]) -> Iterator[Finding]:
    left = sorted(findings, key=_gain, reverse=True)
    while left:
        most = _gain(left[0])
        alike = [finding for finding in left if _gain(finding) >= min(most, ALIKE * most)]
        first = max(alike, key=lambda finding: (finding.speedup_basis == "measured", finding.status == "confirmed"))
        left = [finding for finding in left if finding is not first]
        yield first


def _gain(finding: Finding) -> float:
    """Return by how much throughput likely grows; where nobody predicted it, without all of the cost."""
    gain = finding.speedup or faster_without(finding.cost)
    return (gain.value or 1.0) - 1.0
