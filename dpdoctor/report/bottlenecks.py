"""The costliest bottlenecks as short cards, for a first screen; the findings have each of them whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpdoctor import units
from dpdoctor.analysis import Finding, RunSummary
from dpdoctor.report.blocks import Badge, Block, Card, Grid, Heading, Paragraph
from dpdoctor.report.text import capital, clipped, mode_label, sentence
from dpdoctor.report.words import diagnosis

# Names from the script may be of any length; the whole card has all of them.
LONGEST_TITLE, LONGEST_REMEDY, LONGEST_LINE = 120, 240, 80


def first_cards(summary: RunSummary) -> list[Block]:
    """Return a heading and the first cards, each bottleneck once for all modes that have it; empty: none is costly."""
    found = diagnosis.bottlenecks(summary)
    if not found:
        return []
    cards = tuple(_card(summary, of_rule) for of_rule in found[: diagnosis.MOST_FIRST])
    blocks: list[Block] = [Heading(text="What to change first"), Grid(blocks=cards)]
    if len(found) > len(cards):
        more = units.count(len(found) - len(cards), "more bottleneck")
        blocks.append(Paragraph(text=f"The findings below have {more}."))
    return blocks


def _card(summary: RunSummary, findings: Sequence[Finding]) -> Card:
    """Return the card of one bottleneck: all of its first mode, and in a line each the other modes."""
    first, *others = findings
    return Card(
        tone=diagnosis.SEVERITY_TONES[first.severity],
        title=clipped(capital(first.title), LONGEST_TITLE),
        badges=(
            Badge(text=mode_label(first.mode)),
            Badge(text=first.status, tone=diagnosis.STATUS_TONES[first.status]),
        ),
        points=(),
        pairs=(*_pairs(first), *(_elsewhere(first, other) for other in others)),
        code=first.code or "",
        whole=diagnosis.anchor(summary, first),
    )


def _pairs(finding: Finding) -> Iterator[tuple[str, str]]:
    yield "Cost", diagnosis.cost_words(finding)
    gain = diagnosis.gain_words(finding)
    if gain is not None:
        yield "Would give", gain
    remedy = _remedy(finding)
    if remedy:
        yield "Do", sentence(capital(remedy))
    if finding.line:
        yield "In your script", clipped(finding.line, LONGEST_LINE)


def _elsewhere(first: Finding, other: Finding) -> tuple[str, str]:
    """Return what the bottleneck costs in another mode, and what to do there where that is something else."""
    cost = f"{diagnosis.cost_words(other)}, {other.status}"
    remedy = _remedy(other)
    is_same = (remedy, other.code) == (_remedy(first), first.code)
    return f"Also in {mode_label(other.mode)}", cost if is_same or not remedy else f"{cost}: {remedy}"


def _remedy(finding: Finding) -> str:
    return clipped(finding.short or finding.remedy or "", LONGEST_REMEDY)
