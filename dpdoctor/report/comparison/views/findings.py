"""Which findings appeared, are gone, or cost another share of the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpdoctor.analysis.comparison import Change, Comparison, FindingComparison, FindingState, FindingVerdict
from dpdoctor.report.blocks import Absent, Badge, Block, Card, Cell, Column, Paragraph, Table, View
from dpdoctor.report.comparison.words import (
    FINDING_TONES,
    FINDING_WORDS,
    against,
    finding_cost,
    finding_text,
    signed_interval,
)
from dpdoctor.report.text import NOTHING, mode_label, sentence, short_interval
from dpdoctor.report.words import diagnosis
from dpdoctor.rules import BY_NAME

MEANING = (
    "Costs are shares of a step of the mode, or of an epoch where it says so. What an experiment refuted in a run "
    "counts as not there. Gone means that the rule looked and found nothing; where it could not look, it cannot tell."
)


def build(comparison: Comparison) -> Sequence[Block]:
    """Return every finding with its cost in each run, and what to do about those that appeared."""
    if not comparison.findings:
        return [Absent(what="Findings", reason="no rule found anything in any of these runs")]
    return [_table(comparison), *_cards(comparison), Paragraph(text=MEANING)]


def _table(comparison: Comparison) -> Table:
    return Table(
        caption="Findings with their costs and 95 % intervals, in the order of the first run.",
        columns=(
            Column(title="Finding"),
            *(Column(title=run.label, numeric=True) for run in comparison.runs),
            *(Column(title=title, numeric=True) for title in against(comparison)),
        ),
        rows=tuple(_row(found) for found in comparison.findings),
    )


def _row(found: FindingComparison) -> tuple[Cell, ...]:
    title = BY_NAME[found.rule].title if found.rule in BY_NAME else found.rule
    of = "" if found.of == "step" else f", of {diagnosis.OF_WORDS[found.of]}"
    return (
        Cell(text=title, note=f"{mode_label(found.mode)}, {found.rule}{of}"),
        *(_state(state) for state in found.runs),
        *(_change(*both) for both in zip(found.changes, found.cost.changes, strict=True)),
    )


def _change(what: FindingVerdict, cost: Change) -> Cell:
    return Cell(
        text=NOTHING if what == "absent" else FINDING_WORDS[what],
        note=signed_interval(cost.difference),
        tone=FINDING_TONES.get(what, "plain"),
    )


def _state(state: FindingState) -> Cell:
    if state.finding is None:
        return Cell(text=finding_text(state), footnote=state.reason or "")
    if state.finding.status == "refuted":
        return Cell(text=finding_text(state))
    notes = (short_interval(state.finding.cost), state.finding.status)
    return Cell(text=finding_text(state), note=", ".join(filter(None, notes)), footnote=state.finding.cost.reason or "")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _cards(comparison: Comparison) -> Iterator[Card]:
    """Yield what appeared in a run after the first, with what to do about it."""
    for found in comparison.findings:
        for run, state, change in zip(comparison.runs[1:], found.runs[1:], found.changes, strict=True):
            if change == "appeared" and state.finding is not None:
                yield _card(run.label, state)


def _card(label: str, state: FindingState) -> Card:
    finding = state.finding
    assert finding is not None
    return Card(
        tone="warn" if finding.severity != "info" else "muted",
        title=_capital(finding.title),
        badges=(Badge(text=f"appeared in {label}", tone="warn"), Badge(text=mode_label(finding.mode))),
        points=tuple(sentence(_capital(fact)) for fact in finding.evidence),
        pairs=(
            ("Cost", finding_cost(state)),
            *((("Do", sentence(_capital(finding.remedy))),) if finding.remedy else ()),
            *((("In your script", finding.line),) if finding.line else ()),
        ),
        code=finding.code or "",
    )


VIEW: View[Comparison] = View(name="findings", title="Findings", build=build)
