"""What a gate found besides its figures, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator

from dpdoctor import units
from dpdoctor.gate import counters
from dpdoctor.gate.model import ExactResult, GateResult, ModeResult, Moved, Refusal, Side
from dpdoctor.report.gate.words import judged
from dpdoctor.report.text import mode_label, sentence, with_interval


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
            yield f"{sentence(_refusal(refusal))} {sentence(refusal.remedy)}"


def _refusal(refusal: Refusal) -> str:
    if refusal.base is None and refusal.head is None:
        return f"{refusal.field}: neither has it"
    return f"{refusal.field}: {refusal.base or 'none'} in base, {refusal.head or 'none'} in head"


def origin(result: GateResult) -> Iterator[str]:
    """Yield what was compared, with what was known of the noise."""
    yield _side("base", result.base)
    yield _side("head", result.head)
    if result.calibration is not None:
        yield f"calibrated: {result.calibration.created}"
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
