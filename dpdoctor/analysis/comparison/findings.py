"""What the rules say of each run: what appeared, what is gone, what costs another share of the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dpdoctor.analysis import stats
from dpdoctor.analysis.comparison.figures import compared
from dpdoctor.analysis.comparison.model import Direction, FindingComparison, FindingState, FindingVerdict
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.results import Diagnosis
from dpdoctor.analysis.summary import Finding

# A rule's finding of one mode; a share of an epoch is not compared with a share of a step.
Key = tuple[str, str, str]


def finding_comparisons(
    analyses: Sequence[Diagnosis], why_not: Callable[[Diagnosis, str], str | None]
) -> tuple[FindingComparison, ...]:
    """Return every finding that one run at least has and did not refute, in the order of the runs.

    `why_not` says why nothing of a mode of a run was asked of the rules, or None.
    """
    keys = dict.fromkeys(_key(found) for one in analyses for found in one.summary.findings if found.status != "refuted")
    rows = (_comparison(key, analyses, why_not) for key in keys)
    # A mode whose figures are withheld has findings that are withheld with them.
    return tuple(row for row in rows if any(map(_stands, row.runs)))


def _comparison(
    key: Key, analyses: Sequence[Diagnosis], why_not: Callable[[Diagnosis, str], str | None]
) -> FindingComparison:
    rule, mode, of = key
    states = [_state(key, one, why_not(one, mode)) for one in analyses]
    cost = compared([_cost(state) for state in states])
    verdicts = [change.verdict for change in cost.changes]
    return FindingComparison(
        rule=rule,
        mode=mode,
        of=of,
        runs=tuple(states),
        cost=cost,
        changes=tuple(_change(states[0], state, v) for state, v in zip(states[1:], verdicts, strict=True)),
    )


def _key(finding: Finding) -> Key:
    return finding.rule, finding.mode, finding.share_of


def _state(key: Key, analysis: Diagnosis, reason: str | None) -> FindingState:
    if reason is not None:
        return FindingState(reason=reason)
    for finding in analysis.summary.findings:
        if _key(finding) == key:
            return FindingState(finding=finding)
    rule, mode, _ = key
    asked = (item.reason for item in analysis.summary.inconclusive if (item.rule, item.mode) == (rule, mode))
    return FindingState(reason=next(asked, None))


def _stands(state: FindingState) -> bool:
    return state.finding is not None and state.finding.status != "refuted"


def _cost(state: FindingState) -> Figure:
    if state.finding is not None and _stands(state):
        return state.finding.cost
    if state.finding is not None:
        return stats.unknown("ratio", "the experiment refuted it")
    return stats.unknown("ratio", state.reason or "it was not found")


def _change(base: FindingState, other: FindingState, by_cost: Direction) -> FindingVerdict:
    if base.reason is not None or other.reason is not None:
        return "unknown"
    if not _stands(base):
        return "appeared" if _stands(other) else "absent"
    if not _stands(other):
        return "gone"
    return "unclear" if by_cost == "unknown" else by_cost
