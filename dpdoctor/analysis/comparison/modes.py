"""One mode in every run: what became of it, and its figures side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dpdoctor.analysis import stats
from dpdoctor.analysis.common_steps import NO_STEPS, NO_TRACE
from dpdoctor.analysis.comparison.counters import counter_facts
from dpdoctor.analysis.comparison.figures import compared
from dpdoctor.analysis.comparison.model import Compared, ModeComparison, ModeState
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.launch_facts import shown
from dpdoctor.analysis.results import Diagnosis
from dpdoctor.analysis.summary import ModeSummary
from dpdoctor.analysis.trace_breakdown import breakdown_shares
from dpdoctor.analysis.withheld import why_withheld
from dpdoctor.records import ALL_PHASES, COMMUNICATION, PHASES
from dpdoctor.spec import BASELINE, TRACE_MODE

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


def mode_comparison(name: str, analyses: Sequence[Diagnosis]) -> ModeComparison:
    """Return one mode of all runs; at least one of them has it."""
    states = [_state(one.summary.modes.get(name)) for one in analyses]
    sides = [state.withheld or one.summary.modes[name] for state, one in zip(states, analyses, strict=True)]
    return ModeComparison(
        states=tuple(states),
        figures=_figures(name, sides),
        phases=_phases(name, sides),
        budget=_budget(name, analyses, sides),
        ablations=_ablations(sides),
        counters=counter_facts([None if isinstance(side, str) else side.counters for side in sides]),
    )


def why_inconclusive(analysis: Diagnosis, name: str) -> str | None:
    """Return why no rule was asked about a mode of a run, or None when they were."""
    mode = analysis.summary.modes.get(name)
    withheld = _state(mode).withheld
    if mode is None or withheld is not None:
        return withheld
    if mode.status == "inactive":
        return mode.reason or "the mode changed nothing"
    measured = mode.step.value is not None or mode.breakdown is not None
    return None if measured else mode.step.reason


def _state(mode: ModeSummary | None) -> ModeState:
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


def _figures(name: str, sides: Sides) -> dict[str, Compared]:
    if name == TRACE_MODE:
        return {"traced_step": _row(sides, "s", _traced_step)}
    left_out = _AGAINST_BASELINE if name == BASELINE else ()
    return {key: _row(sides, unit, pick) for key, (unit, pick) in FIGURES.items() if key not in left_out}


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
