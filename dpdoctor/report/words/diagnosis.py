"""Findings in words, alike on the page and in the terminal."""

from __future__ import annotations

import msgspec

from dpdoctor.analysis import Finding, Inconclusive, RunSummary
from dpdoctor.report.text import figure_text, with_interval
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
