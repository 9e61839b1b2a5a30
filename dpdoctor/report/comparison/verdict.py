"""What a comparison says: how each run stands to the first, how far that holds, and what else differs between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from dpdoctor import units
from dpdoctor.analysis import TRACE_MODE
from dpdoctor.analysis.comparison import Change, Comparison, Fact, ModeState
from dpdoctor.report.blocks import Headline
from dpdoctor.report.comparison.rows import (
    by_value,
    differing,
    fact_words,
    in_runs,
    main_rows,
    num_compared,
    of_modes,
    secondary_rows,
    where,
)
from dpdoctor.report.text import batch_text, by_reason, figure_text, interval_text, listed, mode_label, sentence

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
    ratios = [change.ratio for row in of_modes(comparison, main_rows) for change in row.compared.changes]
    scopes = {ratio.scope for ratio in ratios if ratio.value is not None}
    launches = [state.launches for mode in comparison.modes.values() for state in mode.states if state.launches]
    if all(number == 1 for number in launches):
        return CALIBRATED if scopes == {"calibrated"} else ONE_LAUNCH
    return LAUNCHES if scopes <= {"launches"} else SOME_LAUNCHES


def chance(comparison: Comparison) -> str:
    """Return how many of the figures that were compared look changed though they are not; empty: none to speak of."""
    compared = [*of_modes(comparison, main_rows), *secondary_rows(comparison)]
    between, within = num_compared(compared, BETWEEN_LAUNCHES), num_compared(compared, {"run"})
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


NOT_ACCURACY = (
    "Throughput is not time to accuracy: a larger global batch takes fewer optimizer steps per epoch and may need more "
    "epochs."
)
_SCRIPT = ("script", "script_sha256", "args")
_MACHINE = ("cpu", "cores", "memory_bytes", "gpus", "threads_per_device")
_SETTINGS = ("dpdoctor", "host", "seed", "launches_per_mode", "ablations")
_TRACED = ("traced_devices",)


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the figures depend on. `grave`: a change of a figure may well be due to it."""

    title: str
    text: str
    grave: bool = False


def remarks(comparison: Comparison) -> list[Remark]:
    """Return what differs between the runs besides their figures, the graver things first."""
    of_traces = {run.of_traces for run in comparison.runs}
    found = [*_mode_remarks(comparison, of_one_kind=len(of_traces) == 1)]
    if len(of_traces) > 1:
        found.append(_kinds(comparison))
    elif of_traces == {True}:
        # What read the traces is not what made them, and of that they say no more.
        found += _fact_remarks(comparison, "Not the same devices", _TRACED, grave=True)
    else:
        found += [*_script_remarks(comparison), *_surroundings(comparison)]
    return sorted(found, key=lambda remark: not remark.grave)


def _kinds(comparison: Comparison) -> Remark:
    kinds = by_reason((run.label, "traces that existed" if run.of_traces else "a script") for run in comparison.runs)
    made = ", ".join(f"of {kind} ({labels})" for kind, labels in kinds.items())
    text = (
        f"Made {made}. Traces and a script have no mode in common: figures of traces are not those of measured windows"
    )
    return Remark(title="Not made alike", text=sentence(text), grave=True)


def _script_remarks(comparison: Comparison) -> Iterator[Remark]:
    facts = {fact.name: fact for fact in differing(comparison.environment)}
    if "script_sha256" in facts and "script" in facts:
        yield Remark(title="Different scripts", text=sentence(by_value(comparison, facts["script"])), grave=True)
    elif "script_sha256" in facts:
        text = "The file has the same name and other content; what changed may be due to that."
        yield Remark(title="The script changed", text=text, grave=True)
    if "args" in facts:
        yield Remark(title="Different arguments", text=sentence(by_value(comparison, facts["args"])))


def _surroundings(comparison: Comparison) -> Iterator[Remark]:
    others = {*_SCRIPT, *_MACHINE, *_SETTINGS, *_TRACED}
    versions = [fact.name for fact in comparison.environment if fact.name not in others]
    yield from _fact_remarks(comparison, "Not the same machine or threads", _MACHINE, grave=True)
    yield from _fact_remarks(comparison, "Different versions", versions, grave=True)
    yield from _fact_remarks(comparison, "Different settings", _SETTINGS, grave=False)


def _fact_remarks(comparison: Comparison, title: str, names: Iterable[str], *, grave: bool) -> Iterator[Remark]:
    facts = {fact.name: fact for fact in differing(comparison.environment)}
    known: list[Fact] = [facts[name] for name in names if name in facts]
    if known:
        text = " ".join(sentence(f"{fact_words(fact.name)}: {by_value(comparison, fact)}") for fact in known)
        yield Remark(title=title, text=text, grave=grave)


def _mode_remarks(comparison: Comparison, *, of_one_kind: bool) -> Iterator[Remark]:
    if batches := _differences(comparison, _batch):
        text = f"Samples per step, all devices: {batches}. {NOT_ACCURACY}"
        yield Remark(title="Different batches", text=text, grave=True)
    if devices := _differences(comparison, _devices):
        yield Remark(title="Different numbers of devices", text=sentence(devices), grave=True)
    if sources := _differences(comparison, _source):
        yield Remark(title="Samples are counted differently", text=sentence(sources), grave=True)
    if of_one_kind:
        yield from _missing(comparison)
    yield from _endings(comparison)


def _differences(comparison: Comparison, describe: Callable[[ModeState], str | None]) -> str:
    """Return by mode what the runs differ in, `DDP: 64 in A, 128 in B`; empty where they are alike.

    `describe` returns None of a run that does not take part.
    """
    found = []
    for name, mode in comparison.modes.items():
        said = zip(comparison.runs, map(describe, mode.states), strict=True)
        known = [(run.label, text) for run, text in said if text is not None]
        if len({text for _, text in known}) > 1:
            found.append(f"{mode_label(name)}: {in_runs(known)}")
    return ". ".join(found)


def _batch(state: ModeState) -> str | None:
    if state.withheld is not None or state.batch is None or state.batch.global_ is None:
        return None
    return f"{batch_text(state.batch.global_)} ({batch_text(state.batch.per_device)} per device)"


def _source(state: ModeState) -> str | None:
    return state.batch.source if _batch(state) and state.batch else None


def _devices(state: ModeState) -> str | None:
    if state.withheld is not None or state.num_devices is None:
        return None
    return state.placement or units.count(state.num_devices, "device")


def _missing(comparison: Comparison) -> Iterator[Remark]:
    found = []
    for name, mode in comparison.modes.items():
        states = zip(comparison.runs, mode.states, strict=True)
        if lacking := [run.label for run, state in states if state.status is None]:
            found.append(f"{mode_label(name)} is missing in {listed(lacking)}")
    if found:
        yield Remark(title="Not every run has every mode", text=sentence("; ".join(found)))


def _endings(comparison: Comparison) -> Iterator[Remark]:
    """Yield of each mode that did not end well where, and why."""
    for name, mode in comparison.modes.items():
        ended = {run.label: _ending(state) for run, state in zip(comparison.runs, mode.states, strict=True)}
        for status, reason in dict.fromkeys(ending for ending in ended.values() if ending is not None):
            labels = listed([label for label, ending in ended.items() if ending == (status, reason)])
            title = f"{mode_label(name)}: {status} in {labels}"
            yield Remark(title=title, text=sentence(reason), grave=status != "inactive")


def _ending(state: ModeState) -> tuple[str, str] | None:
    """Return how a mode ended and why; None where it is not in the run or ended well."""
    if state.status is None or (state.status == "ok" and state.withheld is None):
        return None
    status = "failed" if state.status == "ok" else state.status
    return status, state.withheld or state.reason or "no reason was recorded"
