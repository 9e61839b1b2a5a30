"""The tables of a gate: how long a step takes, and what it does."""

from __future__ import annotations

from collections.abc import Iterator

from dpdoctor import units
from dpdoctor.analysis import Figure
from dpdoctor.gate import counters
from dpdoctor.gate.model import Difference, GateResult, ModeResult, Outcome
from dpdoctor.report.blocks import Cell, Column, Table
from dpdoctor.report.gate import words
from dpdoctor.report.text import NOTHING, mode_label, name_cell

LONGEST_VALUE = 60
_CHANGE_TONES = {"more": "bad", "less": "good", "other": "warn"}


def tables(result: GateResult) -> Iterator[Table]:
    """Yield the table of times, where any mode was judged by its time, and of counters, where any differs."""
    if result.modes:
        yield _times(result)
    if any(exact.differences for exact in result.exact.values()):
        yield _counters(result)


def _times(result: GateResult) -> Table:
    numeric = ("change of the step", "allowed", "could be seen", "pairs that count")
    return Table(
        caption="How much longer a step of head takes.",
        columns=(Column(title="mode"), Column(title="outcome"), *(Column(title=t, numeric=True) for t in numeric)),
        rows=tuple(_time_row(name, mode) for name, mode in result.modes.items()),
    )


def _time_row(name: str, mode: ModeResult) -> tuple[Cell, ...]:
    return (
        Cell(text=mode_label(name)),
        _outcome_cell(mode.outcome),
        _change_cell(mode.effect),
        Cell(text=units.share(mode.tolerance), sort=mode.tolerance),
        Cell(text="unknown" if mode.mde is None else units.share(mode.mde), sort=mode.mde),
        Cell(text=words.pairs_text(mode)),
    )


def _change_cell(effect: Figure) -> Cell:
    note, why = words.change_interval(effect), effect.reason or ""
    return Cell(text=words.change_text(effect), note=note, footnote=why, sort=effect.value)


def _outcome_cell(outcome: Outcome) -> Cell:
    return Cell(text=words.OUTCOMES[outcome], tone=words.TONES[outcome])


def _counters(result: GateResult) -> Table:
    return Table(
        caption="What one step does otherwise than it did.",
        columns=(
            Column(title="counter"),
            Column(title="base", numeric=True),
            Column(title="head", numeric=True),
            Column(title="where"),
        ),
        rows=tuple(_counter_row(name, item) for name, exact in result.exact.items() for item in exact.differences),
    )


def _counter_row(mode: str, item: Difference) -> tuple[Cell, ...]:
    base, head = (counters.value_text(item.name, value) for value in (item.base, item.head))
    return (
        Cell(text=counters.words(item.name), note=mode_label(mode)),
        name_cell(base, LONGEST_VALUE),
        Cell(text=head, tone=_CHANGE_TONES[item.change]),
        Cell(text=item.line or NOTHING),
    )
