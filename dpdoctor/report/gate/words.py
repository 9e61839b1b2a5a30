"""Outcomes, effects and the headline of a gate in words."""

from __future__ import annotations

from collections.abc import Iterator

from dpdoctor import units
from dpdoctor.analysis import Figure
from dpdoctor.gate.model import GateResult, ModeResult, Outcome
from dpdoctor.report.blocks import Headline
from dpdoctor.report.text import NOTHING, listed, mode_label

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
    """Return how much longer head's step takes: `+9.8 %`."""
    return "unknown" if effect.value is None else _signed(effect.value)


def change_interval(effect: Figure) -> str:
    """Return the bounds of the change: `+8.1 to +11.5 %`, with one of them what it is a bound of; empty without any."""
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
