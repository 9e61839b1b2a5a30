"""The shape of run.json (schema 2): stable, versioned, every figure with its interval or its reason."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.records import Conversion, Counters, Written
from dpdoctor.spec import SCHEMA, Fingerprint, LoaderSetting, asks_for_several


class TransformSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One callable in a chain of transforms: seconds per batch, and its share of the batch's fetch."""

    name: str
    per_batch: Figure
    share: float


class WorkerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One loader process. `busy` is the share of the measured time that it spent on fetching."""

    rank: int
    worker: int
    batches: int
    fetch: Figure
    busy: float | None


class LoaderPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """What an event simulation of the DataLoader predicts; `step` in seconds, `wait` the part of it spent waiting.

    Both are unknown of a setting that was tried and not simulated.
    """

    num_workers: int
    prefetch_factor: int | None
    step: Figure
    wait: Figure


class LoaderTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that was tried in turns with the script's own; `speedup`: how many times as fast a step is with it."""

    setting: LoaderSetting
    speedup: Figure


class SlowFetches(msgspec.Struct, frozen=True, kw_only=True):
    """Fetches that take far longer than the others; a loader of which all fetches differ much has none.

    Attributes:
        count: of the `total` that were timed.
        seconds: of the median one of them; `usual_seconds` is that of the median one of all.
        cpu_ratio: CPU time of the fetching thread over theirs.
        step: what a step would take if they took no longer than usual, predicted; unknown where nothing is.
    """

    count: int
    total: int
    seconds: float
    usual_seconds: float
    cpu_ratio: float
    step: Figure


class LoaderSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The loader that fed the training, seen from inside, in the full windows of one mode.

    Attributes:
        line: where the script iterates it; the other settings are the script's own.
        built_at: where the script builds it; empty: that was not seen.
        fetch: seconds that a worker (or the training thread, without workers) takes for a batch; wall.
        fetch_cv: standard deviation of the fetches over their mean; what an event simulation needs and a mean hides.
        slow_fetches: the few that take far longer than the others; None: there are none.
        cpu_ratio: CPU time of the fetching thread over `fetch` less `queued`: near 1 it computes, near 0 it waits.
        collate: the part of `fetch` that puts samples together.
        wait: seconds per step that the training thread waits.
        ready_batches: share of the asks that found so many batches ready.
        transfer: seconds to take over a batch that lies ready.
        epoch_start: seconds that the first batch of an iteration takes beyond the usual.
        predictions: for every number of workers and prefetch factor within the budget of cores and memory.
        advice: the setting to follow, with its prediction where it was simulated; None: leave it as it is, or unknown;
            `advice_reason` says which and why.
        baseline_same_workers: what one device would take with as many loader processes as all ranks have; None for one
            device, and where the ranks have none, as each then fetches for itself.
        trial: what came of the setting that was tried in a launch of its own; None: there was no such launch.
        index: place in Conversion.loaders.
        rebuilt: the script builds a new one for most of its iterations, so that no process is kept for the next.
        queued: the part of `fetch` in which its thread waits for a core; None: nobody looked.
        batch_tensors: in one batch; None: nobody counted them.
    """

    line: str
    dataset: str
    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    batch_bytes: float | None
    fetch: Figure
    fetch_cv: float | None
    cpu_ratio: Figure
    collate: Figure
    wait: Figure
    ready_batches: dict[int, float]
    transfer: Figure
    epoch_start: Figure
    transforms: tuple[TransformSummary, ...]
    workers: tuple[WorkerSummary, ...]
    predictions: tuple[LoaderPrediction, ...] = ()
    advice: LoaderPrediction | None = None
    advice_reason: str = ""
    baseline_same_workers: LoaderPrediction | None = None
    trial: LoaderTrial | None = None
    slow_fetches: SlowFetches | None = None
    index: int = 0
    built_at: str = ""
    rebuilt: bool = False
    queued: Figure | None = None
    batch_tensors: int | None = None

    @property
    def arguments_line(self) -> str:
        """Where an argument of the DataLoader is to be changed: where it is built, as far as that was seen."""
        return self.built_at or self.line


class Batch(msgspec.Struct, frozen=True, kw_only=True, rename={"global_": "global"}):
    """Mean samples per step: of one device, of all together, the rule that made them and how they were counted.

    A Struct, because the field `global` is a keyword of Python.
    """

    per_device: float | None
    global_: float | None
    rule: str
    source: str


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of one mode. `step` is the mean of its own steps, `device_type` torch's: cpu or cuda."""

    rank: int
    host: str
    device: str
    device_type: str
    status: str
    stage: str
    steps_recorded: int
    step: Figure
    peak_memory_bytes: int | None


class TraceBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Means per traced step and device, in seconds; compute, exposed_comm, h2d, copy and idle add up to step.

    `comm` is all communication, exposed or not; where it is unknown so is exposed_comm, and the reason of compute says
    that it may hold communication. `idle_by` splits idle by digest.IDLE_CAUSES.
    """

    step: Figure
    compute: Figure
    exposed_comm: Figure
    h2d: Figure
    copy: Figure
    idle: Figure
    comm: Figure
    idle_by: dict[str, Figure]


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of one device went, from the first event of its trace to the end of the last, in seconds.

    compute_s, exposed_comm_s, h2d_s, copy_s and idle_s add up to total_s; comm_s is all communication, exposed or not.
    Both are None where RankTrace.unknown_communication says why, and compute_s may hold communication then.

    Attributes:
        device: as CUDA counts in its process; None: there is none, this is the training thread.
    """

    device: int | None
    compute_s: float
    exposed_comm_s: float | None
    h2d_s: float
    copy_s: float
    idle_s: float
    total_s: float
    comm_s: float | None


class RankTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The trace of one rank.

    Attributes:
        rank: as the trace says; None: it does not.
        source: the file's name.
        damage: where and why the file stops being readable; None: it is whole.
        notes: what was noticed while reading.
        unknown_communication: why it is unknown what the rank communicates; None: it is known.
    """

    rank: int | None
    source: str
    damage: str | None
    notes: tuple[str, ...]
    unknown_communication: str | None = None
    devices: tuple[DeviceTime, ...]


class AblationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What one ablation gave: something is switched off inside of the run, in windows between the full ones.

    Attributes:
        gain: seconds per step that switching it off saves, over pairs of windows of one round; unknown where skipped.
        share: the gain as a share of the full step; ratio.
        step: seconds per step with it switched off.
    """

    gain: Figure
    share: Figure
    step: Figure


class CrossCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One share of a step, as seen while it was there and as gained when it was taken away.

    Attributes:
        what: that takes the share, in words.
        ablation: the one that removes it.
        observed: share of a step in the trace or on the host's clock.
        gain: share of a step that the ablation gains.
        agrees: whether they differ by at most `tolerance`; None: that cannot be told, `reason` says why.
        tolerance: 5% of the step, or half the 95% interval of the difference where that is more; ratio.
    """

    what: str
    ablation: str
    observed: Figure
    gain: Figure
    agrees: bool | None
    tolerance: float
    reason: str = ""


class Waterfall(msgspec.Struct, frozen=True, kw_only=True):
    """Where the throughput that N devices ought to give is lost, in seconds per step of one device.

    ideal + the terms = measured. A term is what the mode takes more than one device does for the same batch; negative:
    it gives time back.

    Attributes:
        ideal: the step that would be linear scaling: `single`'s (weak scaling) or its N-th part (strong).
        terms: keys of WATERFALL_TERMS, in that order.
        sources: for each term, the ablation, trace or difference that it comes from.
    """

    ideal: Figure
    measured: Figure
    terms: dict[str, Figure]
    sources: dict[str, str]


WATERFALL_TERMS = (
    "loader_processes",
    "data_loading",
    "transfer",
    "slower_ranks",
    "slower_compute",
    "overhead",
    "other",
)


class NativeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to know of ranks that dpdoctor did not start.

    Attributes:
        launcher: ModeSpec's.
        collectives: that a rank issues per step, over all groups.
        other_worlds: LaunchRecord's.
        is_clocked: the host's phase `communication` is all that ranks exchange.
    """

    launcher: tuple[str, ...]
    collectives: Figure
    other_worlds: str = ""
    is_clocked: bool = False

    @property
    def asks_for_several(self) -> bool:
        """Return whether the launcher was given a number of ranks above one."""
        return asks_for_several(self.launcher)


NOT_TRIED = Figure(value=None, unit="s", reason="how fast the cores compute was not tried")


class ModeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One mode of a run. Throughput is global samples per second, always. `placement` is ModeSpec's.

    `edges_are_steady`: whether steps in which an epoch began or an evaluation ran are among the steady ones: most are
    such or, on a GPU, no window was without. Two modes of which one has them are not to be held against each other.

    `trace_reason`: why the script left no time for a trace; empty where there is one, or none for another reason.

    `core_benchmark`: seconds that a fixed piece of arithmetic took a core, the mean of all ranks and windows.
    `files_changed`, `files_refused`, `again` and `raised` are LaunchRecord's, of all launches.
    `file_protection`: what kept compiled code from the user's files.
    `phases`: host seconds per step, keys of PHASES; in mode native `communication`, too, which others leave in them.

    `native`: of a mode whose ranks the script or its own launcher starts; None: dpdoctor does.

    `waterfall` is None for the baseline and where `waterfall_reason` says why.
    `traces` are those of the launch that speaks for the mode, in the order of its ranks.
    """

    status: str
    reason: str | None
    stderr_tail: tuple[str, ...]
    world_size: int
    num_devices: int
    placement: str = ""
    backend: str | None
    launches: int
    warmup_steady: bool | None
    conversion: Conversion | None
    batch: Batch
    throughput: Figure
    throughput_all_steps: Figure
    epoch_s: Figure
    step: Figure
    edges_are_steady: bool = False
    speedup: Figure
    scaling_efficiency: Figure
    profiler_overhead: Figure
    observer_overhead: Figure
    core_benchmark: Figure = NOT_TRIED
    phases: dict[str, Figure]
    breakdown: TraceBreakdown | None = None
    trace_reason: str = ""
    files_changed: tuple[Written, ...] = ()
    files_refused: tuple[str, ...] = ()
    again: str = ""
    raised: str = ""
    file_protection: str = ""
    traces: tuple[RankTrace, ...] = ()
    ablations: dict[str, AblationSummary] = msgspec.field(default_factory=dict)
    cross_checks: tuple[CrossCheck, ...] = ()
    loader: LoaderSummary | None = None
    waterfall: Waterfall | None = None
    waterfall_reason: str = ""
    native: NativeSummary | None = None
    counters: Counters | None
    ranks: tuple[RankSummary, ...]
    wall_s: float


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """The profiled script."""

    path: str
    sha256: str | None
    args: tuple[str, ...]


UNBOUNDED = "the cost may be all of the time, so that there is no upper bound"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One bottleneck: what it costs, why, what to change and what that would give.

    Attributes:
        cost: share of the time that `share_of` names; unit "ratio".
        share_of: step, or epoch for what happens between steps, or linear for what is lost against linear scaling.
        status: confirmed, an ablation or a counter agrees; refuted, the ablation says that removing it gains nothing;
            inferred, only the trace or the clock says so.
        title: in one line, with its main number: "the loader starves training: 46% of each step".
        ranks: concerned; empty: all.
        evidence: numbers, one sentence each.
        cause: only where one explains at least 80% of the cost.
        no_remedy: why none is given, where that is known.
        remedy: what to do, in a sentence; `code` is the line to write, `line` the script's line to change.
        short_remedy: the remedy in a few words, for a headline: "set num_workers=4"; None where no few words name a
            change that gives what is predicted.
        speedup: throughput after the remedy over that of now; unit "x". It has a low end and no high one where nothing
            bounds it: the cost may be all of the time, or the remedy gives more than is known.
        speedup_basis: what that is: predicted, of a change that was simulated or whose effect is known; measured, in
            windows of this run in which the change was made; or at most, if the remedy took away all of the cost.
    """

    rule: str
    mode: str
    severity: Literal["critical", "warning", "info"]
    status: Literal["confirmed", "refuted", "inferred"]
    title: str
    cost: Figure
    share_of: Literal["step", "epoch", "linear"] = "step"
    ranks: tuple[int, ...] = ()
    evidence: tuple[str, ...]
    cause: str | None
    remedy: str | None
    short_remedy: str | None = None
    code: str | None = None
    line: str | None = None
    speedup: Figure | None = None
    speedup_basis: Literal["predicted", "measured", "at most"] = "predicted"
    no_remedy: str | None = None

    def __post_init__(self) -> None:
        if not self.evidence:
            raise ValueError(f"the finding of {self.rule} has no evidence")
        if self.status == "refuted" and self.remedy:
            raise ValueError(f"{self.rule} recommends what its own experiment refuted")
        if self.short_remedy and not self.remedy:
            raise ValueError(f"{self.rule} has a short remedy but none in full")

    @property
    def gain(self) -> Figure | None:
        """`speedup` as it is told: of a bound the most that it may be."""
        known = self.speedup
        if known is None or self.speedup_basis != "at most" or (known.low is None and known.high is None):
            return known
        reason = UNBOUNDED if known.high is None else None
        return Figure(value=known.high, unit=known.unit, reason=reason)


class Inconclusive(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that cannot tell, and why."""

    rule: str
    mode: str
    reason: str


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """run.json.

    `caveat`: how far launches of one program lie apart within this run, and which cores other processes took, where
    differences between modes may be due to it; empty: they are not, or nobody looked.
    """

    schema: int = SCHEMA
    dpdoctor: str
    command: tuple[str, ...]
    script: Script
    created: str
    fingerprint: Fingerprint
    modes: dict[str, ModeSummary]
    findings: tuple[Finding, ...] = ()
    inconclusive: tuple[Inconclusive, ...] = ()
    caveat: str = ""


def why_withheld(mode: ModeSummary) -> str | None:
    """Return why a mode's figures must not be shown, or None when they may be.

    What a failed mode measured before it failed looks like a result and is none; run.json still has it.
    """
    if mode.status in ("failed", "skipped"):
        return mode.reason or "no reason was recorded"
    if mode.conversion is not None and mode.conversion.proved is False:
        failed = next(check for check in mode.conversion.proof if check.ok is False)
        return f"conversion was not proved: {failed.name}: {failed.text}"
    return None


def with_speedup(mode: ModeSummary, speedup: Figure) -> ModeSummary:
    """Return a mode with this speedup, and the efficiency that it is."""
    efficiency = replace(stats.scaled(speedup, 1 / mode.num_devices), unit="ratio")
    return replace(mode, speedup=speedup, scaling_efficiency=efficiency)


def why_unlike_steps(mode: ModeSummary, other: ModeSummary) -> str | None:
    """Return why steady figures of a mode are not to be held against those of another; None: they may be."""
    if mode.edges_are_steady is other.edges_are_steady or mode.step.value is None or other.step.value is None:
        return None
    ours, others = ("hold", "do not") if mode.edges_are_steady else ("do not hold", "do")
    return (
        f"its steady steps {ours} those in which an epoch began or an evaluation ran, and those that it is compared "
        f"with {others}: longer epochs, or fewer --steps, leave them out of both"
    )
