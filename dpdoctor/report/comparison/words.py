"""Modes, figures, changes and facts of a comparison in words."""

from __future__ import annotations

from collections.abc import Iterable

from dpdoctor import units
from dpdoctor.analysis import BASELINE, TRACE_MODE, Figure
from dpdoctor.analysis.comparison import ComparedRun, Comparison, Fact, FindingState, FindingVerdict, Value
from dpdoctor.report.text import amount, by_reason, clipped, figure_text, mode_label
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


def title(comparison: Comparison) -> str:
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


def signed_text(value: float, unit: str) -> str:
    """Return a difference with its sign; of two shares in points, not to be taken for a share of the share."""
    text = f"{units.share(value).removesuffix('%')} points" if unit == "ratio" else amount(value, unit)
    return f"+{text}" if value > 0 else text


def signed_interval(figure: Figure) -> str:
    """Return the interval of a difference; empty where there is none."""
    if figure.low is None or figure.high is None:
        return ""
    return units.span(signed_text(figure.low, figure.unit), signed_text(figure.high, figure.unit))


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
