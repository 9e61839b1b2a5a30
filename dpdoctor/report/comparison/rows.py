"""The rows that tables of page, terminal and markdown are made of: one figure of one mode in every run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from dpdoctor.analysis.comparison import Change, Compared, Comparison, ModeComparison
from dpdoctor.report.comparison.words import ALIKE, share_words, signed_interval, signed_text
from dpdoctor.report.text import NOTHING, batch_text, figure_text, interval_text

Direction = Literal["more", "less", ""]

# What a figure is called and which direction is the good one.
_FIGURES: dict[str, tuple[str, Direction]] = {
    "throughput": ("throughput", "more"),
    "throughput_all_steps": ("throughput with epoch edges", "more"),
    "step": ("step", "less"),
    "epoch_s": ("epoch", "less"),
    "speedup": ("speedup over one device", "more"),
    "scaling_efficiency": ("of linear scaling", "more"),
    "peak_memory_bytes": ("peak memory of a rank", "less"),
    "core_benchmark": ("the same arithmetic on a core", "less"),
    "traced_step": ("traced step", "less"),
}
_MAIN = ("throughput", "step", "traced_step")
_TONES = {True: "good", False: "bad"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of one mode in every run.

    Attributes:
        by: how a change is told: as a factor, or as a difference where a figure may well be 0.
        better: the direction that is good; empty: neither is, as with shares, of which one grows as another falls.
    """

    mode: str
    what: str
    compared: Compared
    by: Literal["ratio", "difference"]
    better: Direction = ""


Kind = Callable[[str, ModeComparison], Iterator[Row]]


def main_rows(name: str, mode: ModeComparison) -> Iterator[Row]:
    """Yield throughput and step, or the traced step; nothing that no run knows."""
    return (row for key, row in _figures(name, mode) if key in _MAIN)


def other_figures(name: str, mode: ModeComparison) -> Iterator[Row]:
    """Yield the other figures that a run has."""
    return (row for key, row in _figures(name, mode) if key not in _MAIN)


def phase_rows(name: str, mode: ModeComparison) -> Iterator[Row]:
    """Yield the phases of a step on the host's clock that take time in any run."""
    better = _per_step(mode)
    rows = (
        Row(mode=name, what=phase, compared=found, by="difference", better=better)
        for phase, found in mode.phases.items()
    )
    return filter(_takes_time, rows)


def budget_rows(name: str, mode: ModeComparison) -> Iterator[Row]:
    """Yield the shares of the traced steps, and of idle by its causes, that are above 0 in any run."""
    rows = (
        Row(mode=name, what=share_words(key), compared=found, by="difference") for key, found in mode.budget.items()
    )
    return filter(_takes_time, rows)


def ablation_rows(name: str, mode: ModeComparison) -> Iterator[Row]:
    """Yield what each ablation gains that was run in any run."""
    rows = (
        Row(mode=name, what=f"gain of {ablation}", compared=found, by="difference")
        for ablation, found in mode.ablations.items()
    )
    return filter(_is_known, rows)


def of_modes(comparison: Comparison, *kinds: Kind) -> list[Row]:
    """Return the rows of these kinds, mode by mode."""
    return [row for name, mode in comparison.modes.items() for kind in kinds for row in kind(name, mode)]


def secondary_rows(comparison: Comparison) -> list[Row]:
    """Return all rows of all modes but the main ones; what explains a change comes before what follows from it."""
    return of_modes(comparison, phase_rows, budget_rows, ablation_rows, other_figures)


def changed(rows: Iterable[Row]) -> list[Row]:
    """Return the rows in which some run measurably differs from the first."""
    return [row for row in rows if any(is_change(change) for change in row.compared.changes)]


def num_compared(rows: Iterable[Row]) -> int:
    """Return how often a figure was put to the test; of what does not vary at all there is nothing to tell."""
    changes = (change for row in rows for change in row.compared.changes)
    return sum(change.difference.low != change.difference.high for change in changes if change.verdict != "unknown")


def is_change(change: Change) -> bool:
    """Return whether the evidence supports a change: the interval leaves out that there is none."""
    return change.verdict in ("more", "less")


def change_text(row: Row, change: Change) -> str:
    """Return a change, or that none can be measured."""
    if change.verdict == "unknown":
        return NOTHING
    if change.verdict == "alike":
        return ALIKE
    size = figure_text(change.ratio) if _as_ratio(row, change) else _difference_text(change)
    return f"{size}, no interval" if change.verdict == "unclear" else size


def change_interval(row: Row, change: Change) -> str:
    """Return the interval of a change; empty where there is none."""
    return interval_text(change.ratio) if _as_ratio(row, change) else signed_interval(change.difference)


def change_tone(row: Row, change: Change) -> str:
    """Return the tone of a change: good or bad where one direction is, else plain."""
    return _TONES[change.verdict == row.better] if row.better and is_change(change) else "plain"


def _figures(name: str, mode: ModeComparison) -> Iterator[tuple[str, Row]]:
    for key, found in mode.figures.items():
        what, better = _FIGURES[key]
        better = _per_step(mode) if key == "step" else better
        row = Row(mode=name, what=what, compared=found, by="ratio", better=better)
        if _is_known(row):
            yield key, row


def _per_step(mode: ModeComparison) -> Direction:
    """Return the good direction of the time of a step: none where the runs do not train on alike batches in it."""
    batches = {batch_text(state.batch.per_device) for state in mode.states if state.batch and state.withheld is None}
    return "less" if len(batches) <= 1 else ""


def _is_known(row: Row) -> bool:
    return any(figure.value is not None for figure in row.compared.figures)


def _takes_time(row: Row) -> bool:
    return any(figure.value for figure in row.compared.figures)


def _as_ratio(row: Row, change: Change) -> bool:
    """Return whether a change is told as a factor: not where there is none, or the difference alone has an interval."""
    missing = change.ratio.value is None or (change.ratio.low is None and change.difference.low is not None)
    return row.by == "ratio" and not missing


def _difference_text(change: Change) -> str:
    assert change.difference.value is not None
    return signed_text(change.difference.value, change.difference.unit)
