"""Findings in words, alike on the page and in the terminal; the costliest alone where there is no room for all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from dpdoctor import units
from dpdoctor.analysis import Finding, Inconclusive, RunSummary
from dpdoctor.report.text import figure_text, mode_label, with_interval
from dpdoctor.report.words import standing
from dpdoctor.report.words.step_parts import COMMUNICATION, DATA, StepPart, step_parts
from dpdoctor.rules.diagnose import ALIKE

# So many bottlenecks stand on the first screen; more would hide what comes after them.
MOST_FIRST = 3
SEVERITY_TONES = {"critical": "bad", "warning": "warn", "info": "muted"}
OF_WORDS = {"step": "each step", "epoch": "an epoch", "linear": "linear scaling"}
# Where a remedy gives at most what no interval bounds.
NO_BOUND = "no upper bound known"
STATUS_TONES = {"confirmed": "good", "inferred": "plain", "refuted": "muted"}
# The part of a step whose share is what a rule finds costly: on one screen it has one figure, that of the step's parts.
_PART = {"data_starved": DATA, "exposed_communication": COMMUNICATION, "no_overlap": COMMUNICATION}


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Findings by what a reader does with them, each costliest first.

    Attributes:
        costly: to be mended.
        facts: that cost little, or nothing that could be had back.
        refuted: that look costly and are not.
    """

    costly: tuple[Finding, ...]
    facts: tuple[Finding, ...]
    refuted: tuple[Finding, ...]


def parts(summary: RunSummary) -> Parts:
    """Return the findings of the modes whose figures may be shown."""
    shown = standing.shown_modes(summary)
    found = [finding for finding in summary.findings if finding.mode in shown]
    standing_ones = [finding for finding in found if finding.status != "refuted"]
    return Parts(
        costly=tuple(finding for finding in standing_ones if finding.severity != "info"),
        facts=tuple(finding for finding in standing_ones if finding.severity == "info"),
        refuted=tuple(finding for finding in found if finding.status == "refuted"),
    )


def bottlenecks(summary: RunSummary) -> list[tuple[Finding, ...]]:
    """Return the costly findings of each rule together, the costliest rule first.

    Of one rule, those of the modes that the headline is about stand first: what is read below it is about the same
    mode.
    """
    found: dict[str, list[Finding]] = {}
    for finding in parts(summary).costly:
        found.setdefault(finding.rule, []).append(finding)
    leading = standing.leaders(summary)
    return [tuple(sorted(of_rule, key=lambda finding: finding.mode not in leading)) for of_rule in found.values()]


def anchor(summary: RunSummary, finding: Finding) -> str:
    """Return the id of a finding's card on the page."""
    return f"finding-{summary.findings.index(finding) + 1}"


def cost_words(finding: Finding) -> str:
    """Return what a finding costs, with its interval."""
    if finding.cost.value is None:
        return f"unknown: {finding.cost.reason}"
    return f"{with_interval(finding.cost)} of {OF_WORDS[finding.share_of]}"


def gain_words(finding: Finding) -> str | None:
    """Return what the remedy would give, with its interval and how it is known; None where nothing was predicted."""
    gain = finding.gain
    if gain is None:
        return None
    if gain.value is None:
        return f"unknown: {gain.reason}"
    if finding.speedup_basis == "at most":
        return f"at most {figure_text(gain)}"
    return f"{with_interval(gain)}, {'measured' if finding.speedup_basis == 'measured' else 'estimated'}"


def told_share(summary: RunSummary, finding: Finding) -> float | None:
    """Return the share that a finding is of: the step's part that is drawn beside it, else its cost; None: unknown.

    An ablation may say more than the part or less, and gains are predicted from that.
    """
    if finding.cost.value is None or finding.share_of != "step":
        return finding.cost.value
    part = part_of_step(summary, finding)
    return finding.cost.value if part is None else part.share


def part_of_step(summary: RunSummary, found: Finding | Inconclusive) -> StepPart | None:
    """Return the part of its mode's step that a rule is about; None: it is about none, or that takes nothing."""
    key, mode = _PART.get(found.rule), summary.modes.get(found.mode)
    parts = step_parts(mode) if mode is not None and key is not None else ()
    return next((part for part in parts if part.key == key and part.share), None)


def are_alike(share: float, other: float) -> bool:
    """Return whether a reader takes two shares for one and the same."""
    return min(share, other) >= ALIKE * max(share, other)


class Treatment(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about a bottleneck in some of the modes.

    Attributes:
        costs: what it costs in each of these modes, how sure that is and what the remedy gives there, in a clause each.
        lines: of the script, that are to be changed.
        remedy, code: what to do, in words and as a line to write; empty: nothing is known to help.
    """

    costs: tuple[str, ...]
    lines: tuple[str, ...]
    remedy: str
    code: str


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True):
    """One bottleneck with all modes that have it; `tone` is that of the first of them."""

    title: str
    tone: str
    treatments: tuple[Treatment, ...]


def costliest(summary: RunSummary) -> list[Bottleneck]:
    """Return the first bottlenecks, the costliest first, each once with all modes that have it."""
    return [_bottleneck(summary, of_rule) for of_rule in bottlenecks(summary)[:MOST_FIRST]]


def left_to_the_report(summary: RunSummary) -> str:
    """Return in a sentence how many more bottlenecks there are; empty: none."""
    more = len(bottlenecks(summary)) - MOST_FIRST
    return f"The report has {units.count(more, 'more bottleneck')}." if more > 0 else ""


def _bottleneck(summary: RunSummary, findings: Sequence[Finding]) -> Bottleneck:
    first = findings[0]
    return Bottleneck(
        title=first.title,
        tone=SEVERITY_TONES[first.severity],
        treatments=tuple(_treatments(summary, findings)),
    )


def _treatments(summary: RunSummary, findings: Sequence[Finding]) -> Iterator[Treatment]:
    """Yield what to do in each mode; what is the same for several modes once."""
    for (remedy, code), same in itertools.groupby(findings, lambda finding: (finding.remedy, finding.code)):
        treated = list(same)
        yield Treatment(
            costs=tuple(_cost(summary, finding) for finding in treated),
            lines=tuple(dict.fromkeys(finding.line for finding in treated if finding.line)),
            remedy=remedy or "",
            code=code or "",
        )


def _cost(summary: RunSummary, finding: Finding) -> str:
    is_known = finding.speedup is not None and finding.speedup.value is not None
    gain = f"; speedup {gain_words(finding)}" if is_known else ""
    return f"{mode_label(finding.mode)}: {_cost_words(summary, finding)}, {finding.status}{gain}"


def _cost_words(summary: RunSummary, finding: Finding) -> str:
    """Return what a finding costs, and what it takes where the verdict above says another share."""
    told, cost = told_share(summary, finding), finding.cost
    if finding.status != "confirmed" or told is None or cost.value is None or are_alike(told, cost.value):
        return cost_words(finding)
    return f"it takes {units.share(told)} of each step, and without it a step is {with_interval(cost)} shorter"
