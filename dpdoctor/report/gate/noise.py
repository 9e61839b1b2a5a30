"""A calibration for a terminal: how far launches differ, and what a gate could tell on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as RichTable

from dpdoctor import units
from dpdoctor.gate.alternate import Alternated, V
from dpdoctor.gate.comparable import NOT_CONCERNED
from dpdoctor.gate.design import POWER, QUICK, Plan, capability, false_fail_rate, sequence
from dpdoctor.gate.model import Calibration, ModeNoise, Refusal
from dpdoctor.report.formats.console import literal
from dpdoctor.report.gate import content
from dpdoctor.report.text import mode_label, sentence

# What a gate may be told to launch at most; the fewest are those of --quick.
_PLANS = (QUICK, *map(sequence, (7, 12, 20, 30)))


def render(calibration: Calibration, asked: float) -> RenderableType:
    """Return the noise of each mode, what so many pairs find where `asked` is to be allowed, and how often they err."""
    return Group(
        literal(f"Noise of {calibration.workload}", "bold"),
        _noise(calibration),
        literal(f"\nSlowdown that a gate finds with a probability of {units.share(POWER)}, by its most pairs", "bold"),
        _detectable(calibration, asked),
        *_told(calibration, asked),
    )


def not_calibrated(launched: Alternated[V]) -> RenderableType:
    """Return why nothing was learned."""
    if launched.interrupted:
        return literal("Not calibrated: interrupted; what was launched is kept.")
    return Group(literal("Not calibrated:"), *(literal(_refusal(refusal)) for refusal in launched.refusals))


def _refusal(refusal: Refusal) -> str:
    # Both sides are the same code: where one alone is concerned it does not matter which.
    alone = {refusal.base: refusal.head, refusal.head: refusal.base}.get(NOT_CONCERNED)
    told = f"{refusal.field}: {alone}" if alone else content.refusal_text(refusal)
    return f"  {sentence(told)} {sentence(refusal.remedy)}"


def _noise(calibration: Calibration) -> RichTable:
    table = _table("", "Step", "Launches differ by", "Pairs differ by", "Autocorrelation")
    for name, mode in calibration.modes.items():
        table.add_row(
            literal(mode_label(name)),
            units.seconds(mode.median_s),
            units.share(mode.run_cv),
            units.share(mode.pair_sd),
            units.quantity(mode.autocorrelation, ""),
        )
    return table


def _detectable(calibration: Calibration, asked: float) -> RichTable:
    table = _table("", *(_name(plan) for plan in _PLANS))
    for name, mode in calibration.modes.items():
        table.add_row(literal(mode_label(name)), *(_found(mode, plan, asked) for plan in _PLANS))
    return table


def _name(plan: Plan) -> str:
    pairs = units.count(plan.last.pairs, "pair")
    return f"{pairs} (--quick)" if plan is QUICK else pairs


def _found(mode: ModeNoise, plan: Plan, asked: float) -> str:
    if plan.most_run_cv is not None and mode.run_cv > plan.most_run_cv:
        return "too noisy"
    return units.share(capability(plan, mode.pair_sd, asked).mde)


def _told(calibration: Calibration, asked: float) -> Iterator[RenderableType]:
    for name, mode in calibration.modes.items():
        alarms = units.share(false_fail_rate(mode, sequence(), asked))
        pairs = units.count(len(mode.log_ratios), "pair")
        yield literal(
            f"{mode_label(name)}: of gates that allow {units.share(asked)}, {alarms} fail though nothing changed, by "
            f"these {pairs} drawn over and over."
        )


def _table(*titles: str) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for number, title in enumerate(titles):
        table.add_column(title, justify="right" if number else "left", overflow="fold")
    return table
