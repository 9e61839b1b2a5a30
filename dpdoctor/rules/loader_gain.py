"""loader_gain: what a parallel mode gains are its loader processes, not its devices."""

from __future__ import annotations

import math

from dpdoctor import units
from dpdoctor.analysis import BASELINE, Figure, Finding, LoaderPrediction, ModeFacts, ModeSummary
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.loader.trial import AS_GOOD
from dpdoctor.analysis.weighing import COVERAGE, SMALL
from dpdoctor.rules.rule import CannotTell, Rule


def _check(facts: ModeFacts) -> Finding | CannotTell | None:
    baseline, loader, speedup = facts.baseline, facts.mode.loader, facts.mode.speedup.value
    if baseline is None or baseline is facts.mode or loader is None or speedup is None:
        return None
    if min(speedup, facts.mode.speedup.low or speedup) <= 1:
        return None
    control = loader.baseline_same_workers
    if control is None:
        return None
    alone = stats.ratio(baseline.step, control.step, "x")
    if alone.value is None:
        return CannotTell(reason=f"one device with as many loader processes: {alone.reason}")
    if alone.value - 1 < SMALL or math.log(alone.value) < COVERAGE * math.log(speedup):
        return None
    equal = stats.ratio(facts.mode.speedup, alone, "x")
    workers = units.count(control.num_workers, "worker")
    enough = _enough_workers(baseline, control)
    return Finding(
        rule="loader_gain",
        mode=facts.name,
        severity="info",
        status="inferred",
        title=f"most of {facts.name}'s speedup is parallel data loading: one device with {workers} is estimated at "
        f"{units.times(alone.value)}",
        cost=_cost(equal, facts.mode.num_devices),
        share_of="linear",
        evidence=_evidence(facts, alone, equal, control.num_workers),
        cause="each rank brings loader processes of its own, and the baseline is starved by its loader",
        remedy=f"give one device the workers first: num_workers={enough}",
        code=f"DataLoader(..., num_workers={enough})",
        line=loader.arguments_line,
        speedup=None,
    )


def _enough_workers(baseline: ModeSummary, control: LoaderPrediction) -> int:
    """Return the fewest workers of one device that are predicted to give as much as those of all ranks together."""
    predictions = baseline.loader.predictions if baseline.loader is not None else ()
    alike = [p for p in predictions if p.num_workers and p.prefetch_factor == control.prefetch_factor]
    least = AS_GOOD * (control.step.value or 0.0)
    as_good = (p.num_workers for p in alike if p.step.value is not None and p.step.value <= least)
    return min((control.num_workers, *as_good))


def _cost(equal: Figure, num_devices: int) -> Figure:
    """Return the share of the devices' work that is lost against linear scaling, loader processes being equal."""
    return stats.combination(
        [(1, Figure(value=1.0, low=1.0, high=1.0, unit="ratio")), (-1 / num_devices, equal)], "ratio"
    )


def _evidence(facts: ModeFacts, alone: Figure, equal: Figure, workers: int) -> tuple[str, ...]:
    assert facts.mode.speedup.value is not None
    assert alone.value is not None
    assert equal.value is not None
    devices = units.count(facts.mode.num_devices, "device")
    return (
        f"On {devices} {facts.name} is {units.times(facts.mode.speedup.value)} as fast as {BASELINE}.",
        f"With {units.count(workers, 'worker')}, as many processes that fetch as all ranks have, {BASELINE} would be "
        f"{units.times(alone.value)} as fast (simulated from this run's fetch times).",
        f"With equal loader processes {facts.name} is {units.times(equal.value)} as fast as {BASELINE}.",
    )


RULE = Rule(
    name="loader_gain",
    title="The gain is in the loader processes",
    what="A parallel mode is faster than one device, but one device with as many loader processes would be, too.",
    why="N ranks have N times the loader processes; where the loader starves training, that alone makes them faster.",
    how="The DataLoader is simulated with the fetch times measured on one device, with as many workers as all ranks "
    "have together, and compared with what the mode gained.",
    remedy="Give one device the workers first, then look at what more devices add.",
    verified=True,
    check=_check,
)
