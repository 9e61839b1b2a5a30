"""What must be known before the figures of runs are held against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from dpdoctor import units
from dpdoctor.analysis.comparison import Comparison, Fact, ModeState
from dpdoctor.report.comparison.words import by_value, differing, fact_words, in_runs
from dpdoctor.report.text import batch_text, by_reason, listed, mode_label, sentence

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
    found = [*_modes(comparison, of_one_kind=len(of_traces) == 1)]
    if len(of_traces) > 1:
        found.append(_kinds(comparison))
    elif of_traces == {True}:
        # What read the traces is not what made them, and of that they say no more.
        found += _facts(comparison, "Not the same devices", _TRACED, grave=True)
    else:
        found += [*_script(comparison), *_surroundings(comparison)]
    return sorted(found, key=lambda remark: not remark.grave)


def _kinds(comparison: Comparison) -> Remark:
    kinds = by_reason((run.label, "traces that existed" if run.of_traces else "a script") for run in comparison.runs)
    made = ", ".join(f"of {kind} ({labels})" for kind, labels in kinds.items())
    text = (
        f"Made {made}. Traces and a script have no mode in common: figures of traces are not those of measured windows"
    )
    return Remark(title="Not made alike", text=sentence(text), grave=True)


def _script(comparison: Comparison) -> Iterator[Remark]:
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
    yield from _facts(comparison, "Not the same machine or threads", _MACHINE, grave=True)
    yield from _facts(comparison, "Different versions", versions, grave=True)
    yield from _facts(comparison, "Different settings", _SETTINGS, grave=False)


def _facts(comparison: Comparison, title: str, names: Iterable[str], *, grave: bool) -> Iterator[Remark]:
    facts = {fact.name: fact for fact in differing(comparison.environment)}
    known: list[Fact] = [facts[name] for name in names if name in facts]
    if known:
        text = " ".join(sentence(f"{fact_words(fact.name)}: {by_value(comparison, fact)}") for fact in known)
        yield Remark(title=title, text=text, grave=grave)


def _modes(comparison: Comparison, *, of_one_kind: bool) -> Iterator[Remark]:
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
