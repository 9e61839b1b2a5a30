"""The costliest bottlenecks in plain text, for where there is no room for all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec

from dpdoctor import units
from dpdoctor.analysis import Finding, RunSummary
from dpdoctor.report.text import mode_label, with_interval
from dpdoctor.report.words import diagnosis


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
    return [_bottleneck(summary, of_rule) for of_rule in diagnosis.bottlenecks(summary)[: diagnosis.MOST_FIRST]]


def left_to_the_report(summary: RunSummary) -> str:
    """Return in a sentence how many more bottlenecks there are; empty: none."""
    more = len(diagnosis.bottlenecks(summary)) - diagnosis.MOST_FIRST
    return f"The report has {units.count(more, 'more bottleneck')}." if more > 0 else ""


def _bottleneck(summary: RunSummary, findings: Sequence[Finding]) -> Bottleneck:
    first = findings[0]
    return Bottleneck(
        title=first.title,
        tone=diagnosis.SEVERITY_TONES[first.severity],
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
    gain = f"; speedup {diagnosis.gain_words(finding)}" if is_known else ""
    return f"{mode_label(finding.mode)}: {_cost_words(summary, finding)}, {finding.status}{gain}"


def _cost_words(summary: RunSummary, finding: Finding) -> str:
    """Return what a finding costs, and what it takes where the verdict above says another share."""
    told, cost = diagnosis.told_share(summary, finding), finding.cost
    if finding.status != "confirmed" or told is None or cost.value is None or diagnosis.are_alike(told, cost.value):
        return diagnosis.cost_words(finding)
    return f"it takes {units.share(told)} of each step, and its cost is taken as {with_interval(cost)}"
