"""Runs side by side: what changed, as far as the evidence goes, which `dpdoctor compare --format json` writes as it is.

    {"schema": 2, "runs": [{"label": "A", "path": ..., "command": [...], ...}, {"label": "B", ...}],
     "modes": {"ddp": {
       "states": [{"status": "ok", "withheld": null, "batch": {"global": 64, ...}, ...}, ...],
       "figures": {"throughput": {"figures": [{"value", "low", "high", ...}, ...],
                                  "changes": [{"ratio": {...}, "difference": {...}, "verdict": "less"}]}, ...},
       "phases": {"data_wait": ...}, "budget": {"compute": ..., "idle.data": ...}, "ablations": {"no_comm": ...},
       "counters": [{"name": "all_reduce.bytes", "values": [46758048, 46758048], "differs": [false]}]}},
     "findings": [{"rule", "mode", "runs": [...], "cost": {...}, "changes": ["appeared"]}],
     "environment": [{"name": "torch", "values": ["2.11.0", "2.15.0"], "differs": [true]}]}

What has an entry for each run keeps the order of `runs`; what has one for each change, of the runs after the first.
"""

from __future__ import annotations

import shlex
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.launches import shown
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.summary import Batch, Finding, ModeSummary, why_unlike_steps, why_withheld
from dpdoctor.analysis.base.traces import NO_STEPS, NO_TRACE
from dpdoctor.analysis.breakdown import breakdown_shares
from dpdoctor.analysis.facts import Diagnosis
from dpdoctor.records import ALL_PHASES, COMMUNICATION, PHASES, Counters
from dpdoctor.spec import BASELINE, TRACE_MODE

SCHEMA = 2


Direction = Literal["more", "less", "alike", "unclear", "unknown"]
FindingVerdict = Literal["appeared", "gone", "more", "less", "alike", "unclear", "absent", "unknown"]
Value = str | int | None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """How a run's figure stands to the base's.

    Attributes:
        ratio: the run's over the base's; unit "x".
        difference: the run's less the base's, in their unit.
        verdict: more or less: the 95% interval of the difference leaves out 0; alike: it does not; unclear: there is
            no interval; unknown: one of the figures is.
    """

    ratio: Figure
    difference: Figure
    verdict: Direction


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of every run, and the change of each run after the first."""

    figures: tuple[Figure, ...]
    changes: tuple[Change, ...]


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is counted or known without error, of every run; None: unknown.

    `differs`: of each run after the first, whether it is another value than the base's; None: one of them is unknown.
    """

    name: str
    values: tuple[Value, ...]
    differs: tuple[bool | None, ...]


class ModeState(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a mode in one run.

    Attributes:
        status: as in run.json; None: the run has no such mode.
        withheld: why none of its figures may be compared; None: they may.
        reason: of a status that is not ok, as the run gives it.
        placement: ModeSpec's; num_devices and batch are None without the mode.
    """

    status: str | None
    withheld: str | None
    reason: str | None = None
    num_devices: int | None = None
    placement: str = ""
    launches: int = 0
    batch: Batch | None = None


class ModeComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One mode in all runs.

    Attributes:
        figures: throughput, throughput_all_steps, step, epoch_s, speedup, scaling_efficiency, peak_memory_bytes; of
            traces alone traced_step.
        phases: seconds per step on the host's clock, keys of PHASES.
        budget: shares of the traced steps, keys of `breakdown_shares`.
        ablations: seconds per step that switching something off gains.
        counters: of one step after warm-up; the same in every step and on any machine.
    """

    states: tuple[ModeState, ...]
    figures: dict[str, Compared]
    phases: dict[str, Compared]
    budget: dict[str, Compared]
    ablations: dict[str, Compared]
    counters: tuple[Fact, ...]


class FindingState(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule says of one mode of one run: a finding, nothing, or why it cannot tell."""

    finding: Finding | None = None
    reason: str | None = None


class FindingComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What one rule says of one mode in all runs; at least one run has a finding that is not refuted.

    Attributes:
        of: step or epoch, of which the cost is a share.
        cost: of the findings that are not refuted.
        changes: appeared, gone; of one that both have more, less, alike or unclear, by its cost; absent: neither has
            it; unknown: the rule could not tell of one of them.
    """

    rule: str
    mode: str
    of: str
    runs: tuple[FindingState, ...]
    cost: Compared
    changes: tuple[FindingVerdict, ...]


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Which run a label stands for. `of_traces`: it was made of traces that existed before; nothing was run."""

    label: str
    path: str
    created: str
    dpdoctor: str
    script: str
    args: tuple[str, ...]
    command: tuple[str, ...]
    of_traces: bool


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two or more runs; the first is the base. The module's docstring shows it as JSON."""

    schema: int = SCHEMA
    runs: tuple[ComparedRun, ...]
    modes: dict[str, ModeComparison]
    findings: tuple[FindingComparison, ...]
    environment: tuple[Fact, ...]


def compare(analyses: Sequence[Diagnosis]) -> Comparison:
    """Return what differs between runs, which are labelled A, B, C, ...; A is the base.

    Raises:
        ValueError: fewer than two runs.
    """
    if len(analyses) < 2:
        raise ValueError(f"a comparison needs two runs or more, not {len(analyses)}")
    names = dict.fromkeys(name for one in analyses for name in one.summary.modes)
    return Comparison(
        runs=tuple(_run(one, _label(place)) for place, one in enumerate(analyses)),
        modes={name: mode_comparison(name, analyses) for name in names},
        findings=finding_comparisons(analyses, why_inconclusive),
        environment=environment_facts(analyses),
    )


def _label(place: int) -> str:
    """Return A to Z; beyond, which nobody reads side by side, the number of the run."""
    letters = string.ascii_uppercase
    return letters[place] if place < len(letters) else f"run {place + 1}"


def _run(analysis: Diagnosis, label: str) -> ComparedRun:
    summary = analysis.summary
    return ComparedRun(
        label=label,
        path=str(analysis.run.path),
        created=summary.created,
        dpdoctor=summary.dpdoctor,
        script=summary.script.path,
        args=summary.script.args,
        command=summary.command,
        of_traces=[*summary.modes] == [TRACE_MODE],
    )


NO_SUCH_MODE = "the run has no such mode"
NO_SUCH_ABLATION = "the ablation was not run"


Pick = Callable[[ModeSummary], Figure]
# For each run its mode, or why its figures may not be compared.
Sides = Sequence[ModeSummary | str]


def _peak_memory(mode: ModeSummary) -> Figure:
    """Return the most that a rank took; one reading, so without an interval."""
    known = [rank.peak_memory_bytes for rank in mode.ranks if rank.peak_memory_bytes is not None]
    if not known:
        return stats.unknown("bytes", "no rank recorded it")
    return Figure(value=float(max(known)), n=1, unit="bytes")


FIGURES: dict[str, tuple[str, Pick]] = {
    "throughput": ("samples/s", lambda mode: mode.throughput),
    "throughput_all_steps": ("samples/s", lambda mode: mode.throughput_all_steps),
    "step": ("s", lambda mode: mode.step),
    "epoch_s": ("s", lambda mode: mode.epoch_s),
    "speedup": ("x", lambda mode: mode.speedup),
    "scaling_efficiency": ("ratio", lambda mode: mode.scaling_efficiency),
    "peak_memory_bytes": ("bytes", _peak_memory),
    "core_benchmark": ("s", lambda mode: mode.core_benchmark),
}
_AGAINST_BASELINE = ("speedup", "scaling_efficiency")
# Of steady steps alone.
_STEADY = ("throughput", "step")


def mode_comparison(name: str, analyses: Sequence[Diagnosis]) -> ModeComparison:
    """Return one mode of all runs; at least one of them has it."""
    states = [_mode_state(one.summary.modes.get(name)) for one in analyses]
    sides = [state.withheld or one.summary.modes[name] for state, one in zip(states, analyses, strict=True)]
    steady = [_steady(side, sides[0]) for side in sides]
    return ModeComparison(
        states=tuple(states),
        figures=_figures(name, sides, steady),
        phases=_phases(name, steady),
        budget=_budget(name, analyses, sides),
        ablations=_ablations(steady),
        counters=counter_facts([None if isinstance(side, str) else side.counters for side in sides]),
    )


def _mode_state(mode: ModeSummary | None) -> ModeState:
    if mode is None:
        return ModeState(status=None, withheld=NO_SUCH_MODE)
    return ModeState(
        status=mode.status,
        withheld=why_withheld(mode),
        reason=mode.reason,
        num_devices=mode.num_devices,
        placement=mode.placement,
        launches=mode.launches,
        batch=mode.batch,
    )


def _steady(side: ModeSummary | str, base: ModeSummary | str) -> ModeSummary | str:
    """Return a side of which steady figures are compared with those of base, or why they may not be."""
    return side if isinstance(side, str) or isinstance(base, str) else why_unlike_steps(side, base) or side


def _figures(name: str, sides: Sides, steady: Sides) -> dict[str, Compared]:
    if name == TRACE_MODE:
        return {"traced_step": _row(sides, "s", _traced_step)}
    left_out = _AGAINST_BASELINE if name == BASELINE else ()
    return {
        key: _row(steady if key in _STEADY else sides, unit, pick)
        for key, (unit, pick) in FIGURES.items()
        if key not in left_out
    }


def _row(sides: Sides, unit: str, pick: Pick) -> Compared:
    return compared([stats.unknown(unit, side) if isinstance(side, str) else pick(side) for side in sides])


def _traced_step(mode: ModeSummary) -> Figure:
    return stats.unknown("s", NO_STEPS) if mode.breakdown is None else mode.breakdown.step


def _phases(name: str, sides: Sides) -> dict[str, Compared]:
    """Return the host's phases; traces alone have none."""
    if name == TRACE_MODE:
        return {}
    has_more = any(COMMUNICATION in side.phases for side in sides if not isinstance(side, str))
    return {phase: _row(sides, "s", _phase(phase)) for phase in (ALL_PHASES if has_more else PHASES)}


def _phase(name: str) -> Pick:
    return lambda mode: mode.phases.get(name) or stats.unknown("s", "not told apart in this run")


def _budget(name: str, analyses: Sequence[Diagnosis], sides: Sides) -> dict[str, Compared]:
    """Return the shares of traced time, where any run left traces."""
    found = [side if isinstance(side, str) else _shares(one, name) for one, side in zip(analyses, sides, strict=True)]
    keys = dict.fromkeys(key for shares in found if not isinstance(shares, str) for key in shares)
    return {key: compared([_share(shares, key) for shares in found]) for key in keys}


def _shares(analysis: Diagnosis, name: str) -> Mapping[str, Figure] | str:
    traces = shown(analysis.run.modes[name]).traces
    shares = breakdown_shares(traces)
    if shares and shares["exposed_comm"].value is None:
        # What holds communication and what does not are no two values of one figure.
        return {**shares, "compute": shares["exposed_comm"]}
    return shares or NO_TRACE


def _share(shares: Mapping[str, Figure] | str, key: str) -> Figure:
    return stats.unknown("ratio", shares) if isinstance(shares, str) else shares[key]


def _ablations(sides: Sides) -> dict[str, Compared]:
    """Return what each ablation gains that was run or skipped in any run."""
    names = dict.fromkeys(ablation for side in sides if not isinstance(side, str) for ablation in side.ablations)
    return {name: _row(sides, "s", _gain(name)) for name in names}


def _gain(name: str) -> Pick:
    return lambda mode: mode.ablations[name].gain if name in mode.ablations else stats.unknown("s", NO_SUCH_ABLATION)


def why_inconclusive(analysis: Diagnosis, name: str) -> str | None:
    """Return why no rule was asked about a mode of a run, or None when they were."""
    mode = analysis.summary.modes.get(name)
    withheld = _mode_state(mode).withheld
    if mode is None or withheld is not None:
        return withheld
    if mode.status == "inactive":
        return mode.reason or "the mode changed nothing"
    measured = mode.step.value is not None or mode.breakdown is not None
    return None if measured else mode.step.reason


# A rule's finding of one mode; a share of an epoch is not compared with a share of a step.
Key = tuple[str, str, str]


def finding_comparisons(
    analyses: Sequence[Diagnosis], why_not: Callable[[Diagnosis, str], str | None]
) -> tuple[FindingComparison, ...]:
    """Return every finding that one run at least has and did not refute, in the order of the runs.

    `why_not` says why nothing of a mode of a run was asked of the rules, or None.
    """
    keys = dict.fromkeys(_key(found) for one in analyses for found in one.summary.findings if found.status != "refuted")
    rows = (_comparison(key, analyses, why_not) for key in keys)
    # A mode whose figures are withheld has findings that are withheld with them.
    return tuple(row for row in rows if any(map(_stands, row.runs)))


def _comparison(
    key: Key, analyses: Sequence[Diagnosis], why_not: Callable[[Diagnosis, str], str | None]
) -> FindingComparison:
    rule, mode, of = key
    states = [_finding_state(key, one, why_not(one, mode)) for one in analyses]
    cost = compared([_cost(state) for state in states])
    verdicts = [change.verdict for change in cost.changes]
    return FindingComparison(
        rule=rule,
        mode=mode,
        of=of,
        runs=tuple(states),
        cost=cost,
        changes=tuple(_finding_change(states[0], state, v) for state, v in zip(states[1:], verdicts, strict=True)),
    )


def _key(finding: Finding) -> Key:
    return finding.rule, finding.mode, finding.share_of


def _finding_state(key: Key, analysis: Diagnosis, reason: str | None) -> FindingState:
    if reason is not None:
        return FindingState(reason=reason)
    for finding in analysis.summary.findings:
        if _key(finding) == key:
            return FindingState(finding=finding)
    rule, mode, _ = key
    asked = (item.reason for item in analysis.summary.inconclusive if (item.rule, item.mode) == (rule, mode))
    return FindingState(reason=next(asked, None))


def _stands(state: FindingState) -> bool:
    return state.finding is not None and state.finding.status != "refuted"


def _cost(state: FindingState) -> Figure:
    if state.finding is not None and _stands(state):
        return state.finding.cost
    if state.finding is not None:
        return stats.unknown("ratio", "the experiment refuted it")
    return stats.unknown("ratio", state.reason or "it was not found")


def _finding_change(base: FindingState, other: FindingState, by_cost: Direction) -> FindingVerdict:
    if base.reason is not None or other.reason is not None:
        return "unknown"
    if not _stands(base):
        return "appeared" if _stands(other) else "absent"
    if not _stands(other):
        return "gone"
    return "unclear" if by_cost == "unknown" else by_cost


# Counted of every step; a run of an older version does not know them.
_OF_EVERY_STEP = ("micro_batches", "allocations", "h2d_bytes", "graph_breaks")


def counter_facts(counters: Sequence[Counters | None]) -> tuple[Fact, ...]:
    """Return what `counter_values` has, of every run; None: nothing counted. What no run knows is left out."""
    counted = [None if found is None else counter_values(found) for found in counters]
    names = dict.fromkeys(name for found in counted if found for name in found)
    facts = (fact(name, [None if found is None else found.get(name, 0) for found in counted]) for name in names)
    return tuple(found for found in facts if any(value is not None for value in found.values))


def counter_values(counters: Counters) -> dict[str, Value]:
    """Return the counters by name: operators, calls and bytes of each collective, waits by call, inputs and the rest.

    A name that is not there counts what did not happen; None: it was not counted.
    """
    found: dict[str, Value] = {"operators": counters.operators}
    for operation, calls in counters.collectives.items():
        found |= {f"{operation}.count": calls.count, f"{operation}.bytes": calls.num_bytes}
    waits = Counter[str]()
    for sync in counters.syncs:
        waits[sync.call] += sync.count
    found |= {f"syncs.{call}": count for call, count in waits.items()}
    found |= {name: getattr(counters, name) for name in _OF_EVERY_STEP}
    return {**found, **_inputs(counters)}


def _inputs(counters: Counters) -> dict[str, Value]:
    kinds = (f"{tensor.dtype} {'x'.join(map(str, tensor.shape)) or 'scalar'}" for tensor in counters.inputs)
    return {
        "inputs": ", ".join(kinds),
        "inputs.dtypes": ", ".join(tensor.dtype for tensor in counters.inputs),
        "inputs.bytes": sum(tensor.num_bytes for tensor in counters.inputs),
    }


NOT_INSTALLED = "not installed"


def environment_facts(analyses: Sequence[Diagnosis]) -> tuple[Fact, ...]:
    """Return what can explain that two runs differ: the script first, then the settings, the machine and versions."""
    found = [{**_script(one), **_settings(one), **_machine(one)} for one in analyses]
    packages = [one.summary.fingerprint.packages for one in analyses]
    names = sorted({name for versions in packages for name in versions})
    return (
        *(fact(name, [values[name] for values in found]) for name in found[0]),
        *(fact(name, [_version(versions, name) for versions in packages]) for name in names),
        fact("traced_devices", [_traced_devices(one) for one in analyses]),
    )


def _script(analysis: Diagnosis) -> dict[str, Value]:
    script = analysis.summary.script
    return {"script": script.path, "script_sha256": script.sha256, "args": shlex.join(script.args)}


def _settings(analysis: Diagnosis) -> dict[str, Value]:
    spec = analysis.run.header.spec
    return {
        "dpdoctor": analysis.summary.dpdoctor,
        "threads_per_device": spec.threads_per_device,
        "seed": spec.seed,
        "launches_per_mode": spec.repeat,
        "ablations": ", ".join(spec.recording.ablations) or "none",
    }


def _machine(analysis: Diagnosis) -> dict[str, Value]:
    machine = analysis.summary.fingerprint
    return {
        "host": machine.host,
        "cpu": machine.cpu,
        "cores": machine.cores,
        "memory_bytes": machine.memory_bytes,
        "gpus": _listed([gpu.name for gpu in machine.gpus]),
        "driver": machine.driver or "none found",
        "system": machine.system,
        "python": machine.python,
    }


def _version(packages: dict[str, str], name: str) -> str | None:
    """Return a package's version; None where none was recorded at all."""
    return packages.get(name, NOT_INSTALLED) if packages else None


def _traced_devices(analysis: Diagnosis) -> str | None:
    """Return the devices of the traces, which may be of another machine than the one that read them."""
    launches = [shown(found) for found in analysis.run.modes.values() if found]
    digests = [rank.digest for launch in launches for rank in launch.ranks if rank.digest]
    names = [device.name for digest in digests for device in digest.devices]
    return _listed(names) if names else None


def _listed(names: Sequence[str]) -> str:
    """Return names with the number of each: `8 x NVIDIA H100`."""
    return ", ".join(f"{number} x {name}" for name, number in sorted(Counter(names).items())) or "none found"


# Share of a figure below which a difference is that of floating-point sums in another order.
ROUNDING = 1e-9


def compared(figures: Sequence[Figure]) -> Compared:
    """Return figures of one unit, one of each run, and how each stands to the first."""
    base, *others = figures
    return Compared(figures=tuple(figures), changes=tuple(_figure_change(base, other) for other in others))


def fact(name: str, values: Sequence[Value]) -> Fact:
    """Return values that are known without error, one of each run, and which of them are others than the first."""
    base, *others = values
    differs = tuple(None if None in (base, other) else other != base for other in others)
    return Fact(name=name, values=tuple(values), differs=differs)


def _figure_change(base: Figure, other: Figure) -> Change:
    difference = stats.combination([(1.0, other), (-1.0, base)], other.unit)
    if difference.value is not None and base.scope == other.scope:
        difference = replace(difference, scope=base.scope)
    rounding = ROUNDING * max(abs(base.value or 0.0), abs(other.value or 0.0))
    return Change(ratio=stats.ratio(other, base, "x"), difference=difference, verdict=_direction(difference, rounding))


def _direction(difference: Figure, rounding: float) -> Direction:
    """Return whether the interval of the difference leaves out 0 by more than rounding.

    By Fieller's theorem it does exactly where the interval of the ratio leaves out 1; but the ratio has none where the
    base's interval reaches 0, as that of a phase that hardly takes time.
    """
    if difference.value is None:
        return "unknown"
    if difference.low is None or difference.high is None:
        return "unclear"
    if difference.low > rounding:
        return "more"
    return "less" if difference.high < -rounding else "alike"
