"""Run -> Analysis: the summary that run.json holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.ablation import ablations
from dpdoctor.analysis.base.launches import NS, TRACE, LaunchFacts, Window, every, of_one_kind, shown, with_facts
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.summary import (
    NOT_TRIED,
    Batch,
    DeviceTime,
    ModeSummary,
    NativeSummary,
    RankSummary,
    RankTrace,
    RunSummary,
    Script,
    why_unlike_steps,
    with_speedup,
)
from dpdoctor.analysis.base.traces import Traces, with_unknown
from dpdoctor.analysis.breakdown import trace_breakdown
from dpdoctor.analysis.communication import is_clocked
from dpdoctor.analysis.controls import (
    comparable,
    own_cost,
    same_program_words,
    steps_of,
    watched_steps,
    why_apart,
    why_cost_unknown,
    with_launch_spread,
    with_own_cost,
)
from dpdoctor.analysis.cross_rank import Pause, compare_ranks, pauses_of
from dpdoctor.analysis.facts import Analysis
from dpdoctor.analysis.loader.summarise import with_loaders
from dpdoctor.analysis.machine import core_benchmark, core_pace_words, taken_words, while_measured
from dpdoctor.analysis.sample_sizes import why_other_sizes
from dpdoctor.analysis.samples import counting, why_uncounted, why_unlike, with_batch_rule, with_ranks_found
from dpdoctor.analysis.waterfall import waterfalls
from dpdoctor.analysis.weighing import cross_checks
from dpdoctor.digest import HOST, DeviceDigest, Digest
from dpdoctor.records import (
    ALL_PHASES,
    PHASES,
    RUNS_AS_PYTHON,
    Check,
    Conversion,
    Launch,
    LaunchRecord,
    Rank,
    RankRecord,
    Run,
    StepRecord,
    Written,
)
from dpdoctor.spec import BASELINE, TRACE_MODE, ModeSpec, RunHeader, RunSpec

NS_PER_S = 1_000_000_000


def rank_traces(digests: Sequence[Digest]) -> tuple[RankTrace, ...]:
    """Return the traces in the order given, each with its devices."""
    return tuple(
        RankTrace(
            rank=digest.rank,
            source=digest.source,
            damage=digest.damage,
            notes=(*digest.notes, *filter(None, (digest.untold,))),
            unknown_communication=digest.unknown_communication,
            devices=tuple(map(_device_time, digest.devices)),
        )
        for digest in digests
    )


def _device_time(device: DeviceDigest) -> DeviceTime:
    whole = device.whole
    return DeviceTime(
        device=None if device.index == HOST else device.index,
        compute_s=whole.compute_ns / NS_PER_S,
        exposed_comm_s=_seconds(whole.exposed_comm_ns),
        h2d_s=whole.h2d_ns / NS_PER_S,
        copy_s=whole.copy_ns / NS_PER_S,
        idle_s=whole.idle_ns / NS_PER_S,
        total_s=whole.total_ns / NS_PER_S,
        comm_s=_seconds(whole.comm_ns),
    )


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / NS_PER_S


_WALLS = {
    "kernel": "an overlay of the kernel's: what they write only the script sees",
    "landlock": "Landlock: the kernel refuses them files outside of caches and the temporary directory",
}


def wall(rank: RankRecord | None, launch: LaunchRecord) -> str:
    """Return what stood, or why nothing did and what was done instead; empty where nobody knows, or nothing had to."""
    if rank is None or not rank.protected_by:
        return ""
    if rank.protected_by in _WALLS:
        instead = f"; no overlay: {rank.not_walled}" if rank.not_walled else ""
        return f"{_WALLS[rank.protected_by]}{instead}"
    compared = f"nor are they compared: {launch.not_compared}" if launch.not_compared else "they are compared after it"
    return f"nothing: {rank.not_walled or 'no wall was put up'}; {compared}"


TRACES_ALONE = "the run is made of traces: nothing was measured without a profiler"
EDGES_ARE_STEADY = (
    "an epoch began, or an evaluation ran, in every measured window: what that takes a GPU cannot be told apart, so "
    "that steady figures hold it, too; longer epochs, or fewer --steps, leave windows without"
)
LEFT_OUT = (
    "steady figures leave out {}, in which no window was measured without a step in which an epoch began or an "
    "evaluation ran"
)
TURNED = (
    "by step {} ranks have gone over from {} in a step to {}, as hooks do that compress or leave out from then on: "
)
IS_PAST, IS_AHEAD = (
    "figures are of what follows",
    "figures are of what came before; a --warmup of more steps is past it",
)
OTHERS = "the command started other worlds of ranks, too ({}): figures are of the one that is shown"
# What is said of a rate that is no epoch's, before why.
OF_WINDOWS = "of the steps in measured windows alone"
NO_OPTIMIZER = "the script has no torch optimizer; its updates are counted in `other`"
# An epoch of more steps than this never ends in practice (samplers with replacement and a huge length).
MOST_STEPS_PER_EPOCH = 10_000_000


def analyse(run: Run) -> Analysis:
    """Return the figures of a run; whatever is missing is unknown with its reason."""
    run = with_facts(with_unknown(run))
    launches = {name: every(found) for name, found in run.modes.items()}
    header = run.header
    control = list(comparable(every(run.bare), launches.get(BASELINE, ())))
    bare, again = [step for _, step in control], steps_of(every(run.watched), launches.get(BASELINE, ()))
    modes = {
        spec.name: _mode(spec, launches[spec.name], header, header.launch_spread.get(spec.name))
        for spec in header.spec.modes
    }
    if BASELINE in modes:
        modes[BASELINE] = replace(modes[BASELINE], files_changed=_changed([*run.modes[BASELINE], *run.bare]))
    same = same_program_words(modes)
    modes = with_launch_spread(modes)
    baseline = modes.get(BASELINE)
    modes = {name: with_batch_rule(mode, baseline) for name, mode in modes.items()}
    speaking = {name: shown(found) for name, found in launches.items() if found}
    taken = taken_words(speaking, header.fingerprint.cores)
    beside = {name: while_measured(speaking.get(name), header.fingerprint.cores) for name in modes}
    unlike = {name: why_other_sizes(name, speaking) or _disturbed(name, beside) for name in modes}
    modes = {name: _against_baseline(mode, baseline, unlike[name]) for name, mode in modes.items()}
    undisturbed = {name: mode for name, mode in modes.items() if name == BASELINE or not beside[name]}
    watched = [*watched_steps(undisturbed), *again]
    is_other = BASELINE in modes and _runs_as_python(modes[BASELINE])
    cost = own_cost(watched, bare, why_cost_unknown(run.bare, bare, beside.get(BASELINE), is_other_program=is_other))
    modes = with_own_cost(modes, cost, bare)
    modes = with_loaders(modes, speaking, _trials(run), header, {name for name, words in beside.items() if words})
    traces = {name: _traces(launches[name]) for name in modes}
    compared = {name: compare_ranks(found.digests, _pauses(speaking[name])) for name, found in traces.items() if found}
    modes = waterfalls(modes, launches, compared, traces)
    apart = "" if taken else why_apart(control)
    script = Script(path=header.spec.target, sha256=header.fingerprint.script_sha256, args=header.spec.args)
    summary = RunSummary(
        dpdoctor=header.dpdoctor,
        command=header.command,
        script=script,
        created=header.created,
        fingerprint=header.fingerprint,
        modes=modes,
        caveat="; ".join(filter(None, (same, taken or core_pace_words(speaking), apart))),
    )
    return Analysis(summary=summary, run=run, cross_rank=compared)


def _mode(spec: ModeSpec, launches: Sequence[LaunchFacts], header: RunHeader, spread: float | None) -> ModeSummary:
    if not launches:
        return _never_launched(spec)
    speaking = shown(launches)
    spec = with_ranks_found(spec, speaking.record)
    held = of_one_kind(launches)
    # What was measured before a launch failed looks like a result and is none; its files keep it.
    good, steady = ([launch for launch in of if launch.record.status != "failed"] for of in (launches, held))
    windows = [launch.windows() for launch in steady]
    edges_are_steady = any(launch.edges_are_steady for launch in steady)
    of_shown = speaking.windows()
    records = [rank.record for rank in speaking.ranks if rank.record]
    first = records[0] if records else None
    count = counting(windows, header.spec.samples_per_step, first)
    samples = count.samples
    reason = _why_unmeasured(speaking, spec, explain=header.spec.recording.explain)
    step = _over_launches(windows, Window.step, "s", reason)
    gains = ablations(held)
    steps_per_epoch = first.steps_per_epoch if first else None
    epoch = _epoch(stats.calibrated(step, spread), steps_per_epoch, good, speaking, edges_are_steady=edges_are_steady)
    same = first is not None and first.conversion.same_samples
    alike = spec.world_size if same else first.conversion.copies if first is not None else 1
    copies = alike or 1
    unknown = None if header.spec.samples_per_step else why_uncounted(first, alike) or count.unknown
    counted, uncounted = ([], unknown) if unknown else (windows, reason)
    conversion = _with_proof(first.conversion, count.check) if first else None
    batch = _batch(spec, counted, count.source, samples, copies)
    whole = [] if unknown else [launch.windows(with_edges=True) for launch in good]
    with_edges = stats.calibrated(
        _over_launches(whole, lambda w: w.throughput_all_steps(samples, copies), "samples/s", uncounted), spread
    )
    return ModeSummary(
        status=speaking.record.status,
        reason=speaking.record.reason,
        stderr_tail=speaking.record.stderr_tail,
        world_size=max(_told_sizes(spec, speaking), default=spec.world_size),
        num_devices=spec.num_devices,
        placement=spec.placement,
        backend=first.backend if first else None,
        launches=len(launches),
        warmup_steady=first.warmup_steady if first else None,
        conversion=_with_remarks(conversion, speaking, len(launches) - len(held)) if conversion else None,
        batch=batch,
        throughput=stats.calibrated(
            _over_launches(counted, lambda w: w.throughput(samples, copies), "samples/s", uncounted), spread
        ),
        throughput_all_steps=_over_epoch(batch, steps_per_epoch, epoch) or _of_windows(with_edges, epoch),
        epoch_s=epoch,
        step=stats.calibrated(step, spread),
        edges_are_steady=edges_are_steady,
        speedup=stats.unknown("x", _no_baseline(header)),
        scaling_efficiency=stats.unknown("ratio", _no_baseline(header)),
        profiler_overhead=_profiler_cost(held, step)
        if spec.name != TRACE_MODE
        else stats.unknown("ratio", TRACES_ALONE),
        observer_overhead=_observer_cost(records, step),
        core_benchmark=core_benchmark(windows),
        phases=_phases(windows, conversion, reason),
        breakdown=None if speaking.record.status == "failed" else trace_breakdown(speaking.traces),
        trace_reason=_why_untraced(speaking, header.spec),
        files_changed=_changed(launches),
        files_refused=tuple(dict.fromkeys(line for record in _launched(launches) for line in record.files_refused)),
        again=next((record.again for record in _launched(launches) if record.again), ""),
        raised=next((record.raised for record in _launched(launches) if record.raised), ""),
        file_protection=wall(first, speaking.record),
        traces=() if speaking.record.status == "failed" else rank_traces(speaking.traces.digests),
        ablations=gains,
        cross_checks=cross_checks(gains, speaking, header.fingerprint.cores),
        native=_own(spec, speaking, windows, reason) if spec.launcher else None,
        counters=first.counters if first else None,
        ranks=tuple(_rank(rank, of_shown, index) for index, rank in enumerate(speaking.ranks)),
        wall_s=sum(map(_wall_s, _launched(launches))),
    )


def _runs_as_python(mode: ModeSummary) -> bool:
    """Return whether a compiled function of the script was run as Python, so that its model's calls are seen."""
    return mode.conversion is not None and any(RUNS_AS_PYTHON in text for text in mode.conversion.warnings)


def _no_baseline(header: RunHeader) -> str:
    return ": ".join(filter(None, ("no baseline", header.spec.no_baseline)))


def _own(spec: ModeSpec, shown: LaunchFacts, windows: Sequence[Sequence[Window]], reason: str) -> NativeSummary:
    is_counted = all(s.collectives is not None for of in windows for w in of for r in w.ranks for s in r.steady)
    collectives = _over_launches(windows, Window.collectives, "collectives", reason)
    return NativeSummary(
        launcher=spec.launcher,
        collectives=collectives if is_counted else stats.unknown("collectives", "the ranks have no process group"),
        other_worlds=shown.record.other_worlds,
        is_clocked=is_clocked(shown),
    )


def _told_sizes(spec: ModeSpec, launch: LaunchFacts) -> list[int]:
    """Return how many ranks traces of which a run is made say that there were; there may be more files, or fewer."""
    digests = launch.traces.digests if spec.name == TRACE_MODE else ()
    return [digest.world_size for digest in digests if digest.world_size]


def _launched(launches: Sequence[Launch]) -> list[LaunchRecord]:
    return [record for launch in launches for record in (launch.record, launch.traced) if record]


def _changed(launches: Sequence[Launch]) -> tuple[Written, ...]:
    """Return what changed in the user's directories."""
    records = sorted(_launched(launches), key=lambda record: record.begin_ns)
    return together(file for record in records for file in record.files_changed)


def together(changes: Iterable[Written]) -> tuple[Written, ...]:
    """Return what became of files over several launches, given what each of them changed, in their order.

    Each path once, ordered by path; a file that came and went is none.
    """
    first: dict[str, str] = {}
    last: dict[str, Written] = {}
    for file in changes:
        first.setdefault(file.path, file.change)
        last[file.path] = file
    found = (replace(last[path], change=_over(first[path], last[path].change)) for path in sorted(last))
    return tuple(file for file in found if file.change)


def _over(first: str, last: str) -> str:
    """Return what the first and the last change of a file are together; empty: nothing."""
    if first == "new":
        return "" if last == "removed" else "new"
    return "removed" if last == "removed" else "changed"


def _wall_s(record: LaunchRecord) -> float:
    return (record.end_ns - record.begin_ns) * NS


def _with_remarks(conversion: Conversion, launch: LaunchFacts, num_left_out: int) -> Conversion:
    """Return what was done to the script, with what a reader must know of its launches."""
    return replace(conversion, warnings=(*conversion.warnings, *_remarks(launch, num_left_out)))


def _remarks(launch: LaunchFacts, num_left_out: int) -> Iterator[str]:
    if launch.traced is not None and launch.traced.status in ("ok", "inactive"):
        took = units.seconds(_wall_s(launch.traced))
        yield f"training ended before its trace: the mode was launched once more for that alone, in {took}"
    if any(rank.digest for rank in launch.ranks):
        yield from _lost_traces(launch)
    if launch.record.other_worlds:
        yield OTHERS.format(launch.record.other_worlds)
    if turn := launch.turn:
        before, after = (f"{units.digits(number)} collectives" for number in (turn.before, turn.after))
        yield f"{TURNED.format(units.whole(turn.step), before, after)}{IS_PAST if turn.is_past else IS_AHEAD}"
    if launch.is_taken_whole:
        yield EDGES_ARE_STEADY
    if num_left_out:
        yield LEFT_OUT.format(units.count(num_left_out, "launch"))


def _lost_traces(launch: Launch) -> Iterator[str]:
    for rank in launch.ranks:
        if rank.record is not None and rank.record.trace_lost is not None:
            yield f"the trace of rank {rank.index} could not be kept: {rank.record.trace_lost}"


def _why_untraced(launch: Launch, spec: RunSpec) -> str:
    """Return why there is no trace though one was asked for; empty where there is one, or time was over.

    For the latter the conversion has a warning.
    """
    recording = spec.recording
    is_asked_for = recording.trace_steps and not recording.explain and launch.record.status in ("ok", "inactive")
    if not is_asked_for or any(rank.digest for rank in launch.ranks):
        return ""
    if launch.traced is not None:
        ended = launch.traced.reason or f"it was {launch.traced.status}"
        return f"training ended before its trace, and the launch for the trace alone left none: {ended}"
    if lost := next(_lost_traces(launch), ""):
        return lost
    if any(rank.record and rank.record.ending in ("returned", "moved on") for rank in launch.ranks):
        num_steps = min(len(rank.steps) for rank in launch.ranks)
        ended = f"training ended after {units.count(num_steps, 'step')}"
        if spec.go_on:
            return f"{ended}, before its trace: a job that goes on is run once"
        is_enough = recording.of_trace(num_steps) is not None
        return f"{ended}, {'before its trace' if is_enough else 'which are too few to warm up, prove and trace'}"
    return ""


def _trials(run: Run) -> dict[str, LaunchFacts]:
    return {name: LaunchFacts.of(launch) for name, launch in run.trials.items()}


def _traces(launches: Sequence[LaunchFacts]) -> Traces:
    """Return the traces of the launch that speaks for a mode."""
    return shown(launches).traces if launches else Traces(())


def _pauses(launch: Launch) -> dict[int, tuple[Pause, ...]]:
    """Return by rank what those whose digests are compared recorded beside their traces."""
    return {rank.index: pauses_of(rank) for rank in launch.ranks}


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
        placement=spec.placement,
        backend=None,
        launches=0,
        warmup_steady=None,
        conversion=None,
        batch=Batch(per_device=None, global_=None, rule=spec.batch_rule, source="none"),
        throughput=rate,
        throughput_all_steps=rate,
        epoch_s=time,
        step=time,
        speedup=stats.unknown("x", reason),
        scaling_efficiency=ratio,
        profiler_overhead=ratio,
        observer_overhead=ratio,
        core_benchmark=NOT_TRIED,
        phases=dict.fromkeys(PHASES, time),
        counters=None,
        ranks=(),
        wall_s=0.0,
    )


def _why_unmeasured(launch: Launch, spec: ModeSpec, *, explain: bool) -> str:
    if spec.name == TRACE_MODE:
        return TRACES_ALONE
    if launch.record.reason:
        return launch.record.reason
    if explain:
        return "--explain measures nothing"
    here = {rank.index for rank in launch.ranks}
    if lost := [rank for rank in range(spec.world_size) if rank not in here]:
        return f"{_named(lost)} left nothing"
    return "no measured window was complete on every rank"


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"{units.count(len(ranks), 'rank')}, the first of them rank {ranks[0]},"


def _with_proof(conversion: Conversion, check: Check | None) -> Conversion:
    return replace(conversion, proof=(*conversion.proof, check)) if check else conversion


def _over_launches(
    windows: Sequence[Sequence[Window]], measure: Callable[[Window], tuple[float, float]], unit: str, reason: str
) -> Figure:
    """Return total amount over total weight of the windows of one launch or, with more, the mean of the launches'."""
    per_launch = [stats.ratio_of_totals([measure(w) for w in launch], unit) for launch in windows if launch]
    if len(per_launch) == 1:
        return _positive(per_launch[0])
    values = [figure.value for figure in per_launch if figure.value is not None]
    return _positive(stats.mean_interval(values, unit, scope="launches", reason=reason))


def _positive(figure: Figure) -> Figure:
    """Return a figure whose interval does not reach below 0, where no time and no rate can lie."""
    return figure if figure.low is None else replace(figure, low=max(0.0, figure.low))


def _phases(windows: Sequence[Sequence[Window]], conversion: Conversion | None, reason: str) -> dict[str, Figure]:
    """Return the host seconds per step by phase; unknown where nobody saw it or, of `optimizer`, there is none."""
    steps = (s for launch in windows for w in launch for r in w.ranks for s in r.steady)
    names = ALL_PHASES if any(len(s.phases_ns) == len(ALL_PHASES) for s in steps) else PHASES
    found = {name: _over_launches(windows, _phase(name), "s", reason) for name in names}
    # An optimizer that the script let go of before the record was written is not listed, but took time.
    if conversion is not None and not conversion.optimizers and found["optimizer"].value == 0:
        found["optimizer"] = stats.unknown("s", NO_OPTIMIZER)
    if conversion is not None and conversion.made_anew:
        found |= dict.fromkeys(("forward", "other"), stats.unknown("s", conversion.made_anew))
    return found


def _phase(name: str) -> Callable[[Window], tuple[float, int]]:
    return lambda window: window.phase(name)


def _batch(
    spec: ModeSpec, windows: Sequence[Sequence[Window]], source: str, samples: Callable[[StepRecord], int], copies: int
) -> Batch:
    """Return the mean batches; the global one has each sample once that `copies` ranks train on."""
    steps = [s for launch in windows for w in launch for r in w.ranks for s in r.steady]
    if not steps:
        return Batch(per_device=None, global_=None, rule=spec.batch_rule, source="none")
    of_all = sum(samples(s) for s in steps) / len(steps) * spec.world_size
    return Batch(per_device=of_all / spec.num_devices, global_=of_all / copies, rule=spec.batch_rule, source=source)


def _epoch(
    step: Figure,
    steps_per_epoch: int | None,
    launches: Sequence[LaunchFacts],
    shown: Launch,
    *,
    edges_are_steady: bool,
) -> Figure:
    """Return seconds per epoch: its steady steps, and its edges, each the mean of those that were measured.

    Where edges are steady, the steady step holds them.
    """
    if step.value is None:
        return stats.unknown("s", step.reason or "no step time")
    if steps_per_epoch is None:
        return stats.unknown("s", "the length of an epoch is unknown: no loader with a length fed the steps")
    if steps_per_epoch > MOST_STEPS_PER_EPOCH:
        return stats.unknown("s", f"the loader has no real end ({steps_per_epoch:,} steps per epoch)")
    edges = [edge_s for launch in launches for edge_s in _edges(launch, step.value)]
    if not edges:
        left_out = "no epoch began inside a measured window: the cost of its edge is left out"
        return replace(stats.scaled(step, steps_per_epoch), reason=left_out)
    if edges_are_steady:
        return stats.scaled(step, steps_per_epoch)
    number = _edges_per_epoch(shown, steps_per_epoch)
    edge = number * sum(edges) / len(edges)
    figure = stats.scaled(step, steps_per_epoch - number)
    assert figure.value is not None
    return replace(
        figure,
        value=figure.value + edge,
        low=None if figure.low is None else figure.low + edge,
        high=None if figure.high is None else figure.high + edge,
    )


def _edges(launch: LaunchFacts, step_s: float) -> Iterator[float]:
    """Yield the seconds of each edge: on the host's clock or, on a GPU, what usual steps leave of its window's wall."""
    for part in (window.ranks[0] for window in launch.windows(with_edges=True)):
        edges = [step for step in part.counted if step.epoch_edge]
        if launch.on_gpu and edges:
            usual_s = (len(part.counted) - len(edges)) * step_s
            yield from [max(0.0, part.wall_s - usual_s) / len(edges)] * len(edges)
        else:
            yield from (step.duration_ns * NS for step in edges)


def _edges_per_epoch(launch: Launch, steps_per_epoch: int) -> int:
    """Return how many steps of an epoch are edges: the one that begins it, and those with an evaluation."""
    edges = [step.step for rank in launch.ranks[:1] for step in rank.steps if step.epoch_edge]
    if len(edges) < 2 or edges[-1] == edges[0]:
        return 1
    often = (len(edges) - 1) / (edges[-1] - edges[0])
    return min(steps_per_epoch, max(1, round(often * steps_per_epoch)))


def _over_epoch(batch: Batch, steps_per_epoch: int | None, epoch: Figure) -> Figure | None:
    """Return the samples of an epoch over its seconds; None where they are unknown, or no edge of one was measured.

    Of windows it would go by how many edges fell into them.
    """
    if batch.global_ is None or steps_per_epoch is None or not epoch.value or epoch.reason is not None:
        return None
    of_epoch = batch.global_ * steps_per_epoch
    samples = Figure(value=of_epoch, low=of_epoch, high=of_epoch, n=epoch.n, unit="samples", scope=epoch.scope)
    return _positive(stats.ratio(samples, epoch, "samples/s"))


def _of_windows(rate: Figure, epoch: Figure) -> Figure:
    """Return the rate of all counted steps with why it is not that of an epoch."""
    if rate.value is None or epoch.reason is None:
        return rate
    return replace(rate, reason=f"{OF_WINDOWS}; {epoch.reason}")


def _profiler_cost(launches: Sequence[LaunchFacts], step: Figure) -> Figure:
    """Return traced over untraced step time: what torch.profiler itself costs in this run."""
    traced = [launch.windows(kind=TRACE) for launch in launches]
    has_edges = any(launch.windows(kind=TRACE, with_edges=True) for launch in launches)
    reason = "an epoch began, or an evaluation ran, in the traced steps" if has_edges else "no trace was recorded"
    figure = _over_launches(traced, Window.step, "s", reason)
    return stats.ratio(figure, step, "ratio")


def _observer_cost(records: Sequence[RankRecord], step: Figure) -> Figure:
    """Return dpdoctor's own share of a step as its hooks have it: calls per step times the calibrated cost of one."""
    costs = [r.observer_ns for r in records if r.observer_ns is not None]
    if not costs or not step.value:
        return stats.unknown("ratio", step.reason or "the rank ended before it calibrated its own cost")
    return Figure(value=max(costs) * NS / step.value, n=len(costs), unit="ratio")


def _rank(rank: Rank, windows: Sequence[Window], index: int) -> RankSummary:
    record = rank.record
    # Windows, not steps: the host of a GPU runs ahead, and only at window edges does it wait for the device.
    own = [(w.ranks[index].steady_s, len(w.ranks[index].steady)) for w in windows]
    return RankSummary(
        rank=rank.index,
        host=record.host if record else "",
        device=record.device if record else "",
        device_type=record.device_type if record else "",
        status=record.status if record else "failed",
        stage=record.stage if record else "starting",
        steps_recorded=len(rank.steps),
        step=_positive(stats.ratio_of_totals(own, "s", reason="no measured window was complete on every rank")),
        peak_memory_bytes=record.peak_memory_bytes if record else None,
    )


def _disturbed(name: str, beside: Mapping[str, str | None]) -> str | None:
    """Return what others took of the cores while a mode or the baseline was measured: no speedup is known then."""
    return next((f"{beside[one]} while {one} was measured" for one in (BASELINE, name) if beside.get(one)), None)


def _against_baseline(mode: ModeSummary, baseline: ModeSummary | None, unlike: str | None) -> ModeSummary:
    if baseline is None:
        return mode
    reason = _why_not_compared(mode, baseline) or unlike
    speedup = stats.unknown("x", reason) if reason else stats.ratio(mode.throughput, baseline.throughput, "x")
    return with_speedup(mode, speedup)


def _why_not_compared(mode: ModeSummary, baseline: ModeSummary) -> str | None:
    if mode is baseline:
        return "this is the baseline"
    if mode.status == "inactive":
        return "the mode changed nothing that could be compared"
    # What the baseline measured before it failed is no result to compare with.
    if baseline.status == "failed":
        return "the baseline failed"
    return why_unlike(mode, baseline) or why_unlike_steps(mode, baseline)
