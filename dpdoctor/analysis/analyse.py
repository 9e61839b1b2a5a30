"""Run -> Analysis: the summary that run.json holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from dpdoctor.analysis import stats
from dpdoctor.analysis.summary import Analysis, Batch, Figure, ModeSummary, RankSummary, RunSummary, Script
from dpdoctor.analysis.windows import NS, Window, measured
from dpdoctor.records import PHASES, Launch, Rank, RankRecord, Run, StepRecord
from dpdoctor.spec import ModeSpec, RunSpec

BASELINE = "single"
# An epoch of more steps than this never ends in practice (samplers with replacement and a huge length).
MOST_STEPS_PER_EPOCH = 10_000_000


def analyse(run: Run) -> Analysis:
    """Return the figures of a run; whatever is missing is unknown with its reason."""
    header = run.header
    modes = {spec.name: _mode(spec, run.modes[spec.name], header.spec) for spec in header.spec.modes}
    baseline = modes.get(BASELINE)
    modes = {name: _against_baseline(mode, baseline) for name, mode in modes.items()}
    script = Script(path=header.spec.target, sha256=header.fingerprint.script_sha256, args=header.spec.args)
    summary = RunSummary(
        dpdoctor=header.dpdoctor,
        command=header.command,
        script=script,
        created=header.created,
        fingerprint=header.fingerprint,
        modes=modes,
    )
    return Analysis(summary=summary, run=run)


def _mode(spec: ModeSpec, launches: Sequence[Launch], run: RunSpec) -> ModeSummary:
    if not launches:
        return _never_launched(spec)
    # The launch that went wrong speaks for the mode: a mode is ok when all of its launches are.
    shown = next((launch for launch in launches if launch.record.status != "ok"), launches[0])
    windows = [measured(launch) for launch in launches]
    source, samples = _sample_counter(windows, run.samples_per_step)
    records = [rank.record for rank in shown.ranks if rank.record]
    first = records[0] if records else None
    reason = _why_unmeasured(shown, explain=run.recording.explain)
    step = _over_launches(windows, lambda w: w.step_s, "s", reason)
    return ModeSummary(
        status=shown.record.status,
        reason=shown.record.reason,
        stderr_tail=shown.record.stderr_tail,
        world_size=spec.world_size,
        num_devices=spec.num_devices,
        backend=first.backend if first else None,
        launches=len(launches),
        warmup_steady=first.warmup_steady if first else None,
        adoption=first.adoption if first else None,
        batch=_batch(spec, windows, source, samples),
        throughput=_over_launches(windows, lambda w: w.throughput(samples), "samples/s", reason),
        throughput_with_edges=_over_launches(windows, lambda w: w.throughput_with_edges(samples), "samples/s", reason),
        epoch_s=_epoch(step, first.steps_per_epoch if first else None, windows),
        step=step,
        speedup=stats.unknown("x", "no baseline"),
        scaling_efficiency=stats.unknown("ratio", "no baseline"),
        profiler_cost=_profiler_cost(launches, step),
        observer_cost=_observer_cost(records, step),
        phases={name: _over_launches(windows, _phase(name), "s", reason) for name in PHASES},
        counters=first.counters if first else None,
        ranks=tuple(_rank(rank, windows[launches.index(shown)], index) for index, rank in enumerate(shown.ranks)),
        wall_s=sum(launch.record.end_ns - launch.record.begin_ns for launch in launches) * NS,
    )


def _never_launched(spec: ModeSpec) -> ModeSummary:
    reason = "the run ended before this mode began"
    time, rate = stats.unknown("s", reason), stats.unknown("samples/s", reason)
    ratio = stats.unknown("ratio", reason)
    return ModeSummary(
        status="skipped",
        reason=reason,
        stderr_tail=(),
        world_size=spec.world_size,
        num_devices=spec.num_devices,
        backend=None,
        launches=0,
        warmup_steady=None,
        adoption=None,
        batch=Batch(per_device=None, global_=None, rule=spec.batch_rule, source="none"),
        throughput=rate,
        throughput_with_edges=rate,
        epoch_s=time,
        step=time,
        speedup=stats.unknown("x", reason),
        scaling_efficiency=ratio,
        profiler_cost=ratio,
        observer_cost=ratio,
        phases=dict.fromkeys(PHASES, time),
        counters=None,
        ranks=(),
        wall_s=0.0,
    )


def _why_unmeasured(launch: Launch, *, explain: bool) -> str:
    if launch.record.reason:
        return launch.record.reason
    if explain:
        return "--explain measures nothing"
    return "no measured window was complete on every rank"


def _sample_counter(
    windows: Sequence[Sequence[Window]], samples_per_step: int | None
) -> tuple[str, Callable[[StepRecord], int]]:
    """Return where samples are counted, and the counter: the user's word, else loaders' indices, else forwards."""
    if samples_per_step is not None:
        return "--samples-per-step", lambda _: samples_per_step
    drawn = any(s.samples_drawn for launch in windows for w in launch for r in w.ranks for s in r.counted)
    if drawn:
        return "indices drawn by the loader", lambda step: step.samples_drawn
    return "dim 0 of the first tensor of forward", lambda step: step.samples_entered


def _over_launches(
    windows: Sequence[Sequence[Window]], measure: Callable[[Window], float], unit: str, reason: str
) -> Figure:
    """Return a figure over the windows of one launch or, with more launches, over their means."""
    per_launch = [[measure(w) for w in launch] for launch in windows if launch]
    if len(per_launch) == 1:
        return _positive(stats.mean_interval(per_launch[0], unit))
    means = [sum(values) / len(values) for values in per_launch]
    return _positive(stats.mean_interval(means, unit, scope="launches", reason=reason))


def _positive(figure: Figure) -> Figure:
    """Return a figure whose interval does not reach below 0, where no time and no rate can lie."""
    return figure if figure.low is None else dataclasses.replace(figure, low=max(0.0, figure.low))


def _phase(name: str) -> Callable[[Window], float]:
    return lambda window: sum(r.phases_s()[name] for r in window.ranks) / len(window.ranks)


def _batch(
    spec: ModeSpec, windows: Sequence[Sequence[Window]], source: str, samples: Callable[[StepRecord], int]
) -> Batch:
    steps = [s for launch in windows for w in launch for r in w.ranks for s in r.steady]
    if not steps:
        return Batch(per_device=None, global_=None, rule=spec.batch_rule, source="none")
    of_all = sum(samples(s) for s in steps) / len(steps) * spec.world_size
    return Batch(per_device=of_all / spec.num_devices, global_=of_all, rule=spec.batch_rule, source=source)


def _epoch(step: Figure, steps_per_epoch: int | None, windows: Sequence[Sequence[Window]]) -> Figure:
    """Return seconds per epoch: its steady steps, and the mean of the measured steps in which one began."""
    if step.value is None:
        return stats.unknown("s", step.reason or "no step time")
    if steps_per_epoch is None:
        return stats.unknown("s", "the length of an epoch is unknown: no loader with a length fed the steps")
    if steps_per_epoch > MOST_STEPS_PER_EPOCH:
        return stats.unknown("s", f"the loader has no real end ({steps_per_epoch:,} steps per epoch)")
    edges = [s.duration_ns * NS for launch in windows for w in launch for s in w.ranks[0].counted if s.epoch_edge]
    if not edges:
        left_out = "no epoch began inside a measured window: the cost of its edge is left out"
        return dataclasses.replace(_scaled(step, steps_per_epoch), reason=left_out)
    edge = sum(edges) / len(edges)
    figure = _scaled(step, steps_per_epoch - 1)
    assert figure.value is not None
    return dataclasses.replace(
        figure,
        value=figure.value + edge,
        low=None if figure.low is None else figure.low + edge,
        high=None if figure.high is None else figure.high + edge,
    )


def _scaled(figure: Figure, factor: float) -> Figure:
    def times(value: float | None) -> float | None:
        return None if value is None else value * factor

    return dataclasses.replace(figure, value=times(figure.value), low=times(figure.low), high=times(figure.high))


def _profiler_cost(launches: Sequence[Launch], step: Figure) -> Figure:
    """Return traced over untraced step time: what torch.profiler itself costs in this run."""
    traced = [measured(launch, kind="trace") for launch in launches]
    figure = _over_launches(traced, lambda w: w.step_s, "s", "no trace was recorded")
    return stats.ratio(figure, step, "ratio")


def _observer_cost(records: Sequence[RankRecord], step: Figure) -> Figure:
    """Return dpdoctor's own share of a step: calls per step times the calibrated cost of one."""
    costs = [r.observer_ns for r in records if r.observer_ns is not None]
    if not costs or not step.value:
        return stats.unknown("ratio", step.reason or "the rank ended before it calibrated its own cost")
    return Figure(value=max(costs) * NS / step.value, n=len(costs), unit="ratio")


def _rank(rank: Rank, windows: Sequence[Window], index: int) -> RankSummary:
    record = rank.record
    durations = [s.duration_ns * NS for w in windows for s in w.ranks[index].steady]
    return RankSummary(
        rank=rank.index,
        host=record.host if record else "",
        device=record.device if record else "",
        status=record.status if record else "failed",
        phase=record.phase if record else "starting",
        steps_recorded=len(rank.steps),
        step=stats.median_interval(durations, "s", reason="no measured window was complete on every rank"),
        peak_memory_bytes=record.peak_memory_bytes if record else None,
    )


def _against_baseline(mode: ModeSummary, baseline: ModeSummary | None) -> ModeSummary:
    if baseline is None:
        return mode
    if mode is baseline or mode.status == "inactive":
        reason = "this is the baseline" if mode is baseline else "the mode changed nothing that could be compared"
        speedup, efficiency = stats.unknown("x", reason), stats.unknown("ratio", reason)
    else:
        speedup = _positive(stats.ratio(mode.throughput, baseline.throughput, "x"))
        linear = stats.ratio(mode.throughput, baseline.throughput, "ratio", factor=1 / mode.num_devices)
        efficiency = _positive(linear)
    return dataclasses.replace(mode, speedup=speedup, scaling_efficiency=efficiency)
