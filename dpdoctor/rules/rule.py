"""What a rule is: a threshold on the facts of one mode, and the words for what lies above it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import Figure, Finding, ModeFacts
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.weighing import SMALL, above_zero

Severity = Literal["critical", "warning", "info"]

# Share of a step from which a finding is critical: TraceML 0.5 and xprof (input-bound, stragglers).
CRITICAL = 0.20
# Share of the time from which an interruption of training is told: TraceML 0.5's first threshold. Not lower: evaluating
# CIFAR-10 after each epoch takes 6%, 10,000 images forward beside 50,000 forward and backward, and nobody calls that a
# fault.
INTERRUPTING = 0.10


class CannotTell(msgspec.Struct, frozen=True, kw_only=True):
    """The rule applies to this mode, but what it needs is missing; the reason says what, and how to get it."""

    reason: str


Said: TypeAlias = "Finding | CannotTell | None"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule; its file offers it as RULE, and has its name.

    Attributes:
        title: the bottleneck in a few words.
        what, why, how, remedy: its paragraph, for `dpdoctor rules` and the report: what it is, why it costs time, how
            it is measured here, what to do.
        verified: it fired on a planted fault and kept silent without, on real hardware; False: only on recorded or
            constructed figures, because it needs a GPU that nobody had.
        check: returns the finding, None where there is nothing to say, or why it cannot tell.
        parts: names of the rules whose findings may be a part of what this one finds.
        beside: returns what is left of its finding beside the findings of `parts`, of which there is one at least.
        is_of_result: what it finds makes what is trained wrong, however fast that is.
    """

    name: str
    title: str
    what: str
    why: str
    how: str
    remedy: str
    verified: bool
    check: Callable[[ModeFacts], Said]
    parts: tuple[str, ...] = ()
    beside: Callable[[ModeFacts, Sequence[Finding]], Said] | None = None
    is_of_result: bool = False


def severity(cost: float, *, critical: float = CRITICAL) -> Severity:
    """Return how bad it is to lose this share of the time."""
    return "critical" if cost >= critical else "warning"


def faster_without(cost: Figure) -> Figure:
    """Return the throughput without this share of the step over that of now; unit "x".

    Its interval has no upper end where that of the share reaches all of the step.
    """
    if cost.value is None:
        return stats.unknown("x", cost.reason or "the cost is unknown")

    def factor(share: float | None) -> float | None:
        return None if share is None or share >= 1 else 1 / (1 - share)

    value = factor(cost.value)
    if value is None:
        return stats.unknown("x", "nothing would be left of the step")
    return replace(cost, value=value, low=factor(cost.low), high=factor(cost.high), unit="x")


def would_save(
    facts: ModeFacts,
    rule: str,
    ablation: str,
    *,
    what: str,
    tried: str,
    remedy: str,
    short_remedy: str,
    code: str | None,
    evidence: Sequence[str] = (),
    line: str | None = None,
) -> Finding | None:
    """Return the finding of a change that an ablation tried: `what` would save so much of each step; None: too little.

    `tried` says how its windows differed, as the beginning of a sentence, and `evidence` what is told before that.
    """
    found = facts.ablation(ablation)
    if found is None or not above_zero(found.share) or found.gain.value is None:
        return None
    share = found.share.value or 0.0
    if share < SMALL:
        return None
    return Finding(
        rule=rule,
        mode=facts.name,
        severity="warning",
        status="confirmed",
        title=f"{what} would save {units.share(share)} of each step",
        cost=found.share,
        evidence=(*evidence, f"{tried} (ablation {ablation}) a step is {units.seconds(found.gain.value)} shorter."),
        cause=None,
        remedy=remedy,
        short_remedy=short_remedy,
        code=code,
        line=line,
        speedup=faster_without(found.share),
        speedup_basis="measured",
    )
