"""A comparison in words and in rows: names, facts and changes; figures with their changes; tables and lines of both.

Page, terminal and Markdown all take what they tell from here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from dpdoctor import units
from dpdoctor.analysis import BASELINE, TRACE_MODE, Figure
from dpdoctor.analysis.comparison import (
    Change,
    Compared,
    ComparedRun,
    Comparison,
    Fact,
    FindingState,
    FindingVerdict,
    ModeComparison,
    Value,
)
from dpdoctor.report.blocks import Cell, Column, Table
from dpdoctor.report.text import (
    NOTHING,
    amount,
    batch_text,
    by_reason,
    clipped,
    figure_cell,
    figure_text,
    interval_text,
    mode_label,
    name_cell,
    sentence,
)
from dpdoctor.report.traces.words import PART_WORDS, cause_words
from dpdoctor.report.words import diagnosis

ALIKE = "not measurably different"
# In a sentence; the table of the environment has the whole.
LONGEST_IN_SENTENCE = 80
FINDING_WORDS: dict[FindingVerdict, str] = {
    "appeared": "appeared",
    "gone": "gone",
    "more": "costs more",
    "less": "costs less",
    "alike": ALIKE,
    "unclear": "no interval",
    "absent": "in neither",
    "unknown": "cannot tell",
}
FINDING_TONES: dict[FindingVerdict, str] = {"appeared": "bad", "more": "bad", "gone": "good", "less": "good"}
_FACT_WORDS = {
    "script_sha256": "script's SHA-256",
    "args": "arguments",
    "dpdoctor": "dpdoctor",
    "threads_per_device": "threads per device",
    "launches_per_mode": "launches per mode",
    "cpu": "CPU",
    "memory_bytes": "memory",
    "gpus": "GPUs",
    "driver": "GPU driver",
    "python": "Python",
    "traced_devices": "traced devices",
}


def run_name(run: ComparedRun) -> str:
    """Return the name of a run's directory."""
    return run.path.rstrip("/").rpartition("/")[2] or run.path


def title_of(comparison: Comparison) -> str:
    """Return which runs are compared, by the names of their directories."""
    base, *others = map(run_name, comparison.runs)
    return f"{', '.join(others)} against {base}"


def where(mode: str) -> str:
    """Return where a mode's figures hold, to stand in a sentence."""
    if mode == BASELINE:
        return "on one device"
    return "in the traces" if mode == TRACE_MODE else f"with {mode_label(mode)}"


def against(comparison: Comparison) -> tuple[str, ...]:
    """Return a title for the change of each run after the first."""
    base, *others = comparison.runs
    return tuple(f"{other.label} against {base.label}" for other in others)


def share_words(key: str) -> str:
    """Return a share of the traced steps in words; `idle.data` is idle by its cause."""
    whole, _, cause = key.partition(".")
    return f"{PART_WORDS[whole]}: {cause_words(cause)}" if cause else PART_WORDS[whole]


def _signed_text(value: float, unit: str) -> str:
    """Return a difference with its sign; of two shares in points, not to be taken for a share of the share."""
    text = f"{units.share(value).removesuffix('%')} points" if unit == "ratio" else amount(value, unit)
    return f"+{text}" if value > 0 else text


def signed_interval(figure: Figure) -> str:
    """Return the interval of a difference; empty where there is none."""
    if figure.low is None or figure.high is None:
        return ""
    return units.span(_signed_text(figure.low, figure.unit), _signed_text(figure.high, figure.unit))


def fact_words(name: str) -> str:
    """Return the name of a fact of environment or counters in words: `all_reduce.bytes` is `all_reduce bytes`."""
    return _FACT_WORDS.get(name, name.replace(".", " "))


def value_text(fact: Fact, value: Value) -> str:
    """Return a value of a fact."""
    if value is None:
        return "unknown"
    if isinstance(value, int):
        return units.size(value) if fact.name.endswith("bytes") else units.whole(value)
    return value or "none"


def differing(facts: Iterable[Fact]) -> list[Fact]:
    """Return the facts that are known to differ in some run."""
    return [fact for fact in facts if any(fact.differs)]


def by_value(comparison: Comparison, fact: Fact) -> str:
    """Return each value once with the runs that have it: `2 in A and B, 8 in C`."""
    values = (clipped(value_text(fact, value), LONGEST_IN_SENTENCE) for value in fact.values)
    labelled = zip((run.label for run in comparison.runs), values, strict=True)
    return in_runs(labelled)


def in_runs(labelled: Iterable[tuple[str, str]]) -> str:
    """Return each text once with the labels that it goes with, from (label, text) pairs."""
    return ", ".join(f"{text} in {labels}" for text, labels in by_reason(labelled).items())


def finding_text(state: FindingState) -> str:
    """Return what a rule says of a mode of one run, in a few words."""
    if state.reason is not None:
        return "cannot tell"
    if state.finding is None:
        return "not found"
    cost = state.finding.cost
    return "refuted" if state.finding.status == "refuted" else figure_text(cost)


def finding_cost(state: FindingState) -> str:
    """Return what a finding costs and how far it is proved, for a sentence."""
    assert state.finding is not None
    return f"{diagnosis.cost_words(state.finding)}, {state.finding.status}"


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


class Row(msgspec.Struct, frozen=True, kw_only=True):
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


def num_compared(rows: Iterable[Row], scopes: Collection[str]) -> int:
    """Return how often a figure of these scopes was put to the test; what does not vary at all tells nothing."""
    differences = (change.difference for row in rows for change in row.compared.changes if change.verdict != "unknown")
    return sum(found.low != found.high for found in differences if found.scope in scopes)


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
    return _signed_text(change.difference.value, change.difference.unit)


LONGEST_VALUE = 60


def figure_table(comparison: Comparison, caption: str, rows: Sequence[Row]) -> Table:
    """Return figures with their intervals, and the changes; there is at least one row."""
    return Table(
        caption=caption,
        columns=(
            Column(title="Figure"),
            *(Column(title=run.label, numeric=True) for run in comparison.runs),
            *(Column(title=title, numeric=True) for title in against(comparison)),
        ),
        rows=tuple(_figure_row(row) for row in rows),
    )


def fact_table(comparison: Comparison, caption: str, facts: Sequence[Fact]) -> Table:
    """Return what is known without error, one row each."""
    return Table(
        caption=caption,
        columns=(Column(title="What"), *(Column(title=run.label) for run in comparison.runs)),
        rows=tuple(
            (
                Cell(text=fact_words(fact.name)),
                *(name_cell(value_text(fact, value), LONGEST_VALUE) for value in fact.values),
            )
            for fact in facts
        ),
    )


def _figure_row(row: Row) -> tuple[Cell, ...]:
    changes = (
        Cell(text=change_text(row, change), note=change_interval(row, change), tone=change_tone(row, change))
        for change in row.compared.changes
    )
    return (
        Cell(text=row.what, note=mode_label(row.mode)),
        *(figure_cell(figure) for figure in row.compared.figures),
        *changes,
    )


# The page has them all.
MOST_CHANGES = 20


def decisive_rows(comparison: Comparison) -> tuple[list[Row], str]:
    """Return throughput and step of every mode and the other figures that changed, and what was left out of them."""
    main = of_modes(comparison, main_rows)
    found = changed(secondary_rows(comparison))
    more = len(found) - MOST_CHANGES
    left_out = f"{units.count(more, 'more figure')} changed; the page has them (--out FILE.html)." if more > 0 else ""
    return [*main, *found[:MOST_CHANGES]], left_out


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
