"""What terminal and markdown tell of a comparison: less than the page, in the same words."""

from __future__ import annotations

from collections.abc import Iterator

from dpdoctor import units
from dpdoctor.analysis.comparison import Comparison, FindingState, FindingVerdict
from dpdoctor.report.comparison import rows
from dpdoctor.report.comparison.rows import Row
from dpdoctor.report.comparison.words import FINDING_WORDS, by_value, differing, fact_words, finding_cost
from dpdoctor.report.text import mode_label, sentence

# The page has them all.
MOST_CHANGES = 20


def decisive_rows(comparison: Comparison) -> tuple[list[Row], str]:
    """Return throughput and step of every mode and the other figures that changed, and what was left out of them."""
    main = rows.of_modes(comparison, rows.main_rows)
    changed = rows.changed(rows.secondary_rows(comparison))
    more = len(changed) - MOST_CHANGES
    left_out = f"{units.count(more, 'more figure')} changed; the page has them (--out FILE.html)." if more > 0 else ""
    return [*main, *changed[:MOST_CHANGES]], left_out


def finding_lines(comparison: Comparison) -> Iterator[str]:
    """Yield in a line each finding that appeared, is gone, or costs measurably more or less."""
    base = comparison.runs[0].label
    for found in comparison.findings:
        for run, state, change in zip(comparison.runs[1:], found.runs[1:], found.changes, strict=True):
            told = _told(base, found.runs[0], state, change)
            if told:
                what = f"{found.rule} {FINDING_WORDS[change]} in {run.label}, {mode_label(found.mode)}"
                yield f"{sentence(f'{what}: {told}')}{_remedy(state, change)}"


def _told(base: str, before: FindingState, state: FindingState, change: FindingVerdict) -> str:
    """Return what a finding cost and costs; empty where that is not known to have changed."""
    if change == "appeared":
        return finding_cost(state)
    if change == "gone":
        return f"it was {finding_cost(before)} in {base}"
    return f"{finding_cost(before)} in {base}, now {finding_cost(state)}" if change in ("more", "less") else ""


def _remedy(state: FindingState, change: FindingVerdict) -> str:
    """Return in a sentence what to do about what appeared, where that is known."""
    remedy = state.finding.remedy if state.finding and change == "appeared" else None
    return f" To do: {sentence(remedy)}" if remedy else ""


def counter_lines(comparison: Comparison) -> Iterator[str]:
    """Yield in a line each counter of a step that differs."""
    for name, mode in comparison.modes.items():
        for fact in differing(mode.counters):
            yield sentence(f"{mode_label(name)}, {fact_words(fact.name)}: {by_value(comparison, fact)}")
