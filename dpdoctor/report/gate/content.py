"""What terminal, Markdown and test report tell of a gate, in the same words and order: headline, tables, sentences."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from dpdoctor import units
from dpdoctor.analysis import Figure
from dpdoctor.gate import counters
from dpdoctor.gate.model import Difference, ExactResult, GateResult, ModeResult, Moved, Outcome, Refusal, Side
from dpdoctor.report.blocks import Cell, Column, Headline, Table
from dpdoctor.report.text import NOTHING, listed, mode_label, name_cell, sentence, with_interval

OUTCOMES: dict[Outcome, str] = {
    "pass": "pass",
    "regressed": "regressed",
    "inconclusive": "could not judge",
    "refused": "not comparable",
}
TONES: dict[Outcome, str] = {"pass": "good", "regressed": "bad", "inconclusive": "warn", "refused": "warn"}
_HEADS: dict[Outcome, str] = {
    "pass": "Passed",
    "regressed": "Regressed",
    "inconclusive": "Could not judge",
    "refused": "Base and head may not be compared",
}
TIME, COUNTERS = "time", "counters"


def headline(result: GateResult) -> Headline:
    """Return the outcome and what it is about: the modes that decided it, or the fields that forbid to compare."""
    return Headline(tone=TONES[result.outcome], sentence=f"{_HEADS[result.outcome]}: {_about(result)}.")


def judged(result: GateResult) -> Iterator[tuple[str, str, Outcome, str]]:
    """Yield everything that was judged: a mode, whether by its time or its counters, the outcome, and the reason."""
    for name, mode in result.modes.items():
        yield name, TIME, mode.outcome, mode.reason
    for name, exact in result.exact.items():
        yield name, COUNTERS, exact.outcome, exact.reason


def change_text(effect: Figure) -> str:
    """Return how much longer head's step takes: `+9.8%`."""
    return "unknown" if effect.value is None else _signed(effect.value)


def change_interval(effect: Figure) -> str:
    """Return the bounds of the change: `+8.1 to +11.5%`, with one of them what it is a bound of; empty without any."""
    low, high = (None if bound is None else _signed(bound) for bound in (effect.low, effect.high))
    if low is not None and high is not None:
        return units.span(low, high)
    if low is not None:
        return f"at least {low}"
    return "" if high is None else f"at most {high}"


def pairs_text(mode: ModeResult) -> str:
    """Return how many pairs count, of how many that were launched."""
    if not mode.pairs:
        return NOTHING
    counting = sum(pair.replaced is None for pair in mode.pairs)
    return f"{units.whole(counting)} of {units.whole(len(mode.pairs))}"


def _signed(ratio: float) -> str:
    text = units.share(ratio - 1)
    return text if text.startswith("-") else f"+{text}"


def _about(result: GateResult) -> str:
    if result.outcome == "refused":
        return listed([refusal.field for refusal in result.refusals if refusal.hard] or ["no field was named"])
    found = [f"{mode_label(name)} ({kind})" for name, kind, outcome, _ in judged(result) if outcome == result.outcome]
    return listed(found) if found else "nothing was judged"


def reasons(result: GateResult) -> Iterator[str]:
    """Yield of everything that was judged why it is so."""
    for name, kind, _, reason in judged(result):
        yield sentence(f"{mode_label(name)}, {kind}: {reason}")


def moved(mode: ModeResult) -> Iterator[str]:
    """Yield what moved with the step, by phase, finding and counter."""
    for item in mode.moved:
        yield sentence(_moved(item))


def _moved(item: Moved) -> str:
    if item.kind == "counter":
        return f"{counters.words(item.name)}: {item.text}"
    if item.kind == "finding":
        return f"finding {item.name} {item.text}"
    figures = [with_interval(figure) for figure in (item.base, item.head) if figure is not None]
    return f"phase {item.name}: {' before, '.join(figures)} now"


def differences(exact: ExactResult) -> Iterator[str]:
    """Yield what a step does otherwise."""
    for item in exact.differences:
        where = f", at {item.line}" if item.line else ""
        yield sentence(f"{counters.told(item)}{where}")


def left_out(exact: ExactResult) -> Iterator[str]:
    """Yield which counters were not compared, and why."""
    for item in exact.left_out:
        yield sentence(f"{counters.words(item.name)}: {item.reason}")


def replaced(mode: ModeResult) -> Iterator[str]:
    """Yield the pairs that do not count, and why."""
    for number, pair in enumerate(mode.pairs, 1):
        if pair.replaced is not None:
            yield sentence(f"pair {units.whole(number)}: {pair.replaced}")


def refusals(result: GateResult, *, hard: bool) -> Iterator[str]:
    """Yield what differs between base and head: what forbids to compare them, or what is only to be known."""
    for refusal in result.refusals:
        if refusal.hard == hard:
            yield f"{sentence(refusal_text(refusal))} {sentence(refusal.remedy)}"


def refusal_text(refusal: Refusal) -> str:
    """Return what base and head each have of a field."""
    if refusal.base is None and refusal.head is None:
        return f"{refusal.field}: neither has it"
    return f"{refusal.field}: {refusal.base or 'none'} in base, {refusal.head or 'none'} in head"


def origin(result: GateResult) -> Iterator[str]:
    """Yield what was compared, with what was known of the noise."""
    yield _side("base", result.base)
    yield _side("head", result.head)
    if result.calibration is not None:
        noise = result.calibration.modes
        dates = dict.fromkeys(
            noise[name].created or result.calibration.created for name in result.modes if name in noise
        )
        yield f"calibrated: {', '.join(dates or [result.calibration.created])}"
    yield f"dpdoctor {result.dpdoctor}"


def _side(name: str, side: Side) -> str:
    return f"{name}: {side.label}"


def of_modes(result: GateResult) -> Iterator[tuple[str, str]]:
    """Yield (title, line) of all that is told by mode."""
    for name, mode in result.modes.items():
        yield from (("What moved", f"{mode_label(name)}, {line}") for line in moved(mode))
        yield from (("Pairs that do not count", f"{mode_label(name)}, {line}") for line in replaced(mode))
    for name, exact in result.exact.items():
        yield from (("Counters that were left out", f"{mode_label(name)}, {line}") for line in left_out(exact))


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
        Cell(text=pairs_text(mode)),
    )


def _change_cell(effect: Figure) -> Cell:
    note, why = change_interval(effect), effect.reason or ""
    return Cell(text=change_text(effect), note=note, footnote=why, sort=effect.value)


def _outcome_cell(outcome: Outcome) -> Cell:
    return Cell(text=OUTCOMES[outcome], tone=TONES[outcome])


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


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """A gate in plain text. Text from a run or a baseline is in it as it was; whoever shows it must escape it.

    Attributes:
        reasons: why each mode has its outcome; on pass, too.
        lists: titles with their lines, one at least each.
        origin: what was compared.
    """

    verdict: Headline
    reasons: tuple[str, ...]
    tables: tuple[Table, ...]
    lists: tuple[tuple[str, tuple[str, ...]], ...]
    origin: tuple[str, ...]


def content(result: GateResult) -> Content:
    """Return what is to be told of a gate."""
    return Content(
        verdict=headline(result),
        reasons=tuple(reasons(result)),
        tables=tuple(tables(result)),
        lists=tuple(_lists(result)),
        origin=tuple(origin(result)),
    )


def _lists(result: GateResult) -> Iterator[tuple[str, tuple[str, ...]]]:
    found = {
        "Why they may not be compared": list(refusals(result, hard=True)),
        **_by_title(result),
        "Other differences": list(refusals(result, hard=False)),
        "Remarks": list(result.remarks),
    }
    yield from ((title, tuple(told)) for title, told in found.items() if told)


def _by_title(result: GateResult) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for title, line in of_modes(result):
        found.setdefault(title, []).append(line)
    return found
