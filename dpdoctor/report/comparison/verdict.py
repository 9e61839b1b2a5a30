"""The answer of a comparison in words: how each run stands to the first, and how far that holds."""

from __future__ import annotations

from collections.abc import Iterable

from dpdoctor import units
from dpdoctor.analysis import TRACE_MODE
from dpdoctor.analysis.comparison import Change, Comparison
from dpdoctor.report.blocks import Headline
from dpdoctor.report.comparison import rows
from dpdoctor.report.comparison.words import where
from dpdoctor.report.text import batch_text, figure_text, interval_text, listed, mode_label, sentence

ONE_LAUNCH = (
    "One launch each: the intervals hold within a launch, and another launch may differ by more. "
    "dpdoctor profile --repeat N gives intervals between launches."
)
SOME_LAUNCHES = (
    "Not all of these runs have several launches of each mode: intervals hold within a launch, and another launch may "
    "differ by more. dpdoctor profile --repeat N gives intervals between launches."
)
CALIBRATED = (
    "One launch each: the intervals of throughput and step are between launches, by the calibrated noise of the "
    "machine; those of time breakdowns are within the launch."
)
LAUNCHES = "The intervals of throughput and step are between launches; those of time breakdowns are within one launch."
TRACED = "The intervals are between the traced steps of one run each, which the profiler slows: another run may differ."
# Scopes of figures whose intervals allow for how far launches differ.
BETWEEN_LAUNCHES = frozenset(("launches", "calibrated"))
_CLAUSES = {
    "more": "is faster than {base} ",
    "less": "is slower than {base} ",
    "alike": "is not measurably different from {base} ",
    "unclear": "cannot be told from {base} by so few windows ",
}
# Where the batches differ a step is not the same work, and neither is "faster" the word for more samples.
_OTHER_BATCH_CLAUSES = _CLAUSES | {
    "more": "gives more samples per second than {base} ",
    "less": "gives fewer samples per second than {base} ",
}
_TRACE_CLAUSES = {
    "more": "takes longer for a traced step than {base}",
    "less": "takes less time for a traced step than {base}",
    "alike": "is not measurably different from {base} in its traced step",
    "unclear": "cannot be told from {base} by so few traced steps",
}


def verdicts(comparison: Comparison) -> list[Headline]:
    """Return for each run after the first in one sentence how fast it is against the first."""
    return [_verdict(comparison, place) for place in range(len(comparison.runs) - 1)]


def evidence(comparison: Comparison) -> str:
    """Return what the intervals are taken over, and so how far they hold."""
    if all(run.of_traces for run in comparison.runs):
        return TRACED
    ratios = [change.ratio for row in rows.of_modes(comparison, rows.main_rows) for change in row.compared.changes]
    scopes = {ratio.scope for ratio in ratios if ratio.value is not None}
    launches = [state.launches for mode in comparison.modes.values() for state in mode.states if state.launches]
    if all(number == 1 for number in launches):
        return CALIBRATED if scopes == {"calibrated"} else ONE_LAUNCH
    return LAUNCHES if scopes <= {"launches"} else SOME_LAUNCHES


def chance(comparison: Comparison) -> str:
    """Return how many of the figures that were compared look changed though they are not; empty: none to speak of."""
    compared = [*rows.of_modes(comparison, rows.main_rows), *rows.secondary_rows(comparison)]
    between, within = rows.num_compared(compared, BETWEEN_LAUNCHES), rows.num_compared(compared, {"run"})
    expected = round(0.05 * between)
    told = []
    if expected:
        told.append(
            f"{units.count(between, 'figure')} were compared at 95% between launches. Had nothing changed, about "
            f"{units.whole(expected)} of them would be called changed all the same."
        )
    if within:
        told.append(
            f"Of {units.count(within, 'figure')} compared within a launch, many more than 5% may be called changed "
            "though nothing did."
        )
    return " ".join(told)


def _throughputs(comparison: Comparison, place: int) -> dict[str, Change]:
    """Return by mode the known changes of throughput of one run after the first.

    A mode that was inactive in one of the two changed nothing there: its figures are not the mode's.
    """
    found = {}
    for name, mode in comparison.modes.items():
        states = (mode.states[0], mode.states[place + 1])
        if name != TRACE_MODE and not any(state.status == "inactive" for state in states):
            found[name] = mode.figures["throughput"].changes[place]
    return {name: change for name, change in found.items() if change.verdict != "unknown"}


def _verdict(comparison: Comparison, place: int) -> Headline:
    base, label = comparison.runs[0].label, comparison.runs[place + 1].label
    found = _throughputs(comparison, place)
    if not found:
        return _of_traces(comparison, place) or Headline(
            tone="plain", sentence=f"No throughput of {label} can be compared with {base}'s."
        )
    words = _CLAUSES if _train_alike(comparison, place, found) else _OTHER_BATCH_CLAUSES
    clauses = [
        _clause(
            words[kind].format(base=base), {name: change for name, change in found.items() if change.verdict == kind}
        )
        for kind in _CLAUSES
        if any(change.verdict == kind for change in found.values())
    ]
    return Headline(
        tone=_tone({change.verdict for change in found.values()}),
        sentence=sentence(f"{_scope(comparison, place)}{label} {'; it '.join(clauses)}"),
        detail=_detail(f"Throughput of {label} over {base}", found),
    )


def _scope(comparison: Comparison, place: int) -> str:
    """Return what the answer holds for where that is one launch of each mode; a reader of one sentence must know."""
    states = [state for mode in comparison.modes.values() for state in (mode.states[0], mode.states[place + 1])]
    return "In one launch each, " if all(state.launches <= 1 for state in states) else ""


def _train_alike(comparison: Comparison, place: int, modes: Iterable[str]) -> bool:
    """Return whether two runs train on the same global batch in these modes."""
    pairs = [(states[0], states[place + 1]) for states in (comparison.modes[name].states for name in modes)]
    sizes = [[state.batch.global_ if state.batch else None for state in pair] for pair in pairs]
    return all(batch_text(one) == batch_text(other) for one, other in sizes)


def _clause(begin: str, found: dict[str, Change]) -> str:
    places = [f"{where(name)} ({figure_text(change.ratio)})" for name, change in found.items()]
    return begin + listed(places)


def _of_traces(comparison: Comparison, place: int) -> Headline | None:
    """Return how the traced steps of two runs made of traces stand; None where one of them has none."""
    mode = comparison.modes.get(TRACE_MODE)
    change = mode.figures["traced_step"].changes[place] if mode else None
    if change is None or change.verdict == "unknown":
        return None
    base, label = comparison.runs[0].label, comparison.runs[place + 1].label
    clause = _TRACE_CLAUSES[change.verdict].format(base=base)
    opposite = {"more": "less", "less": "more"}.get(change.verdict, change.verdict)
    return Headline(
        tone=_tone({opposite}),
        sentence=f"{label} {clause} ({figure_text(change.ratio)}).",
        detail=_detail(f"Traced step of {label} over {base}", {TRACE_MODE: change}),
    )


def _detail(what: str, found: dict[str, Change]) -> str:
    """Return the intervals behind the factors, where there are any."""
    known = {name: interval_text(change.ratio) for name, change in found.items()}
    spans = [f"{mode_label(name)} {interval}" for name, interval in known.items() if interval]
    return f"{what}, 95% intervals: {'; '.join(spans)}." if spans else ""


def _tone(kinds: set[str]) -> str:
    if {"more", "less"} <= kinds:
        return "warn"
    return "good" if "more" in kinds else "bad" if "less" in kinds else "plain"
