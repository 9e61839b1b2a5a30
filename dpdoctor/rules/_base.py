"""What a rule is: a pure function from one mode of an analysis to a finding, to nothing, or to why it cannot tell."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from dpdoctor import units
from dpdoctor.analysis import Analysis, ArmSummary, Figure, Finding, ModeSummary, NotJudged, stats
from dpdoctor.analysis.cross_check import allowed

Severity = Literal["critical", "warning", "info"]
Status = Literal["confirmed", "refuted", "inferred"]

# Share of a step below which nothing is said: input-bound begins at 5 % in tb_plugin 0.4 and xprof.
SMALL = 0.05
# Share of a step from which a finding is critical: TraceML 0.5 and xprof (input-bound, stragglers).
CRITICAL = 0.20
# Share of the cost that a cause must explain before it is named: TraceML 0.5's policy for stragglers.
COVERAGE = 0.80


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One mode of an analysis, as a rule sees it."""

    analysis: Analysis
    name: str

    @property
    def mode(self) -> ModeSummary:
        """The mode's summary."""
        return self.analysis.summary.modes[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotTell:
    """The rule applies to this mode, but what it needs is missing; the reason says what, and how to get it."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule; each module of this package offers one as RULE, and the file's name is the rule's.

    Attributes:
        title: the bottleneck in a few words.
        what, why, how, remedy: its paragraph, for `dpdoctor rules` and the report: what it is, why it costs time, how
            it is measured here, what to do.
        verified: it fired on a planted fault and kept silent without, on real hardware; False: only on recorded or
            constructed figures, because it needs a GPU that nobody had.
        check: returns the finding, None where there is nothing to say, or why it cannot tell.
    """

    title: str
    what: str
    why: str
    how: str
    remedy: str
    verified: bool
    check: Callable[[Case], Finding | CannotTell | None]


def judge(name: str, rule: Rule, case: Case) -> Finding | NotJudged | None:
    """Return what a rule says of one mode; a cost that may be nothing, by its own interval, is not known to be one."""
    found = rule.check(case)
    if isinstance(found, CannotTell):
        return NotJudged(rule=name, mode=case.name, reason=found.reason)
    if found is None or found.severity == "info" or found.cost.low is None or found.cost.low > 0:
        return found
    assert found.cost.value is not None
    assert found.cost.high is not None
    interval = units.span(units.share(found.cost.low), units.share(found.cost.high))
    reason = (
        f"what it would cost, {units.share(found.cost.value)} ({interval}) by this run, cannot be told from nothing"
    )
    return NotJudged(rule=name, mode=case.name, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """A cost as a share of the step, and how far it is proved."""

    cost: Figure
    status: Status

    @property
    def value(self) -> float:
        """The cost; 0 where it is unknown."""
        return self.cost.value or 0.0


def weigh(claim: Figure, arm: ArmSummary | None) -> Weighed:
    """Return what is to be believed of a claimed share of the step, given the arm that removes what is claimed.

    The arm's share where it is clearly above zero: confirmed. The arm's, too, where it is not and lies clearly below
    the claim: refuted. The claim where there is no arm or it is too noisy to tell: inferred.
    """
    return weigh_against(claim, arm.share) if arm is not None else Weighed(cost=claim, status="inferred")


def weigh_against(claim: Figure, gained: Figure) -> Weighed:
    """Return the same, given the share of the step that an experiment gains without what is claimed."""
    if gained.value is None:
        return Weighed(cost=claim, status="inferred")
    if above_zero(gained):
        return Weighed(cost=gained, status="confirmed")
    above = claim.value is not None and gained.low is not None and claim.value > gained.value
    refuted = above and not agree(claim, gained)
    return Weighed(cost=gained, status="refuted") if refuted else Weighed(cost=claim, status="inferred")


def above_zero(figure: Figure) -> bool:
    """Return whether a figure has an interval and all of it lies above zero."""
    return figure.low is not None and figure.low > 0


def agree(a: Figure, b: Figure) -> bool:
    """Return whether two known shares of a step differ by no more than trace and arm may: 5 % or their intervals."""
    assert a.value is not None
    assert b.value is not None
    return abs(a.value - b.value) <= allowed(a, b)


def is_more_exact(a: Figure, b: Figure) -> bool:
    """Return whether `a` measures what `b` does, and has an interval that is narrower than that of `b`."""
    if a.value is None or a.low is None or b.value is None or not agree(a, b):
        return False
    return stats.half_width(a) < stats.half_width(b)


def more_exact(weighed: Weighed, claim: Figure) -> Weighed:
    """Return a proved cost as it was claimed, where that agrees with the arm and is known more exactly.

    A claim is measured in every step, an arm takes the difference of two windows.
    """
    if weighed.status == "confirmed" and is_more_exact(claim, weighed.cost):
        return dataclasses.replace(weighed, cost=claim)
    return weighed


def share_beside(seconds: Figure, others_s: float) -> Figure:
    """Return the share that something of these seconds has of all time, when `others_s` pass from one to the next."""

    def share(value: float | None) -> float | None:
        return None if value is None else max(0.0, value) / (max(0.0, value) + others_s)

    value, low, high = share(seconds.value), share(seconds.low), share(seconds.high)
    return dataclasses.replace(seconds, value=value, low=low, high=high, unit="ratio")


def severity(cost: float, *, critical: float = CRITICAL) -> Severity:
    """Return how bad it is to lose this share of the time."""
    return "critical" if cost >= critical else "warning"


def share_of_step(case: Case, seconds: Figure) -> Figure:
    """Return seconds per step as a share of the mode's measured step; unknown with a reason where either is."""
    return stats.ratio(seconds, case.mode.step, "ratio")


def measured_arm(case: Case, name: str) -> ArmSummary | None:
    """Return an arm of the mode that gave a share; None: it was not asked for, or it was skipped."""
    arm = case.mode.arms.get(name)
    return arm if arm is not None and arm.share.value is not None else None


def faster_without(cost: Figure) -> Figure:
    """Return the throughput without this share of the step over that of now; unit "x"."""
    if cost.value is None:
        return stats.unknown("x", cost.reason or "the cost is unknown")

    def factor(share: float | None) -> float | None:
        return None if share is None or share >= 1 else 1 / (1 - share)

    value = factor(cost.value)
    if value is None:
        return stats.unknown("x", "nothing would be left of the step")
    low, high = factor(cost.low), factor(cost.high)
    if low is None or high is None:
        low = high = None
    return dataclasses.replace(cost, value=value, low=low, high=high, unit="x")


def main_part(parts: Mapping[str, float], cost: float) -> str | None:
    """Return the name of the part that explains at least COVERAGE of a cost; None: no single one does."""
    if not parts:
        return None
    name = max(parts, key=lambda part: parts[part])
    return name if parts[name] > 0 and parts[name] >= COVERAGE * cost else None
