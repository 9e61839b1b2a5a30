"""What a rule is: a pure function from one mode of an analysis to a finding, to nothing, or to why it cannot tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpdoctor.analysis import Analysis, Finding, ModeSummary, NotJudged


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
    """Return what a rule says of one mode."""
    found = rule.check(case)
    if isinstance(found, CannotTell):
        return NotJudged(rule=name, mode=case.name, reason=found.reason)
    return found
