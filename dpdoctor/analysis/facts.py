"""What there is to know of a run and its modes beyond the summary, each fact computed when it is first asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import msgspec

from dpdoctor import units
from dpdoctor.analysis import breakdown
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.ablation import jitter_phases, jitter_wait
from dpdoctor.analysis.base.launches import LaunchFacts, Window, every, of_one_kind, shown
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.summary import AblationSummary, ModeSummary, RunSummary
from dpdoctor.analysis.base.traces import Traces
from dpdoctor.analysis.breakdown import part_share
from dpdoctor.analysis.communication import NOT_TIMED, Exposure, clocked_share, exposed_calls_share, exposure
from dpdoctor.analysis.cross_rank.model import CrossRank
from dpdoctor.analysis.interruptions import (
    Interruptions,
    Restarts,
    begins_every_step,
    interruptions,
    is_left_early,
    restarts,
    share_of_events,
)
from dpdoctor.analysis.machine import (
    Cores,
    Throttled,
    cores,
    is_busy,
    starts_more_than_others,
    taken_from_a_worker,
    throttled,
    throttled_periods,
    waiting_for_cores,
    while_measured,
)
from dpdoctor.analysis.rank_imbalance import SlowRank, Unevenness, slowest_rank, unevenness
from dpdoctor.records import (
    HAND_WRITTEN,
    PARAMETERS_EQUAL,
    REDUCED_TWICE,
    TENSOR_PARALLEL,
    CallNode,
    Device,
    Launch,
    RankRecord,
    Run,
    Strategy,
)
from dpdoctor.spec import BASELINE, TRACE_MODE, Fingerprint, Gpu, RunSpec


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The most that torch's allocators held on one GPU.

    Attributes:
        ranks: that use it; of several the peaks are added up, which is the most that it can have been.
        total_bytes: of the GPU; None: not known.
    """

    name: str
    ranks: tuple[int, ...]
    num_bytes: int
    total_bytes: int | None

    @property
    def is_bound(self) -> bool:
        """Whether it may have been less: several ranks need not hold most at one moment."""
        return len(self.ranks) > 1


def peaks(launch: Launch, gpus: Sequence[Gpu]) -> list[Peak]:
    """Return the peak of every GPU that a rank used; empty on the CPU."""
    sizes = {gpu.uuid: gpu.memory_bytes for gpu in gpus}
    users: dict[tuple[str, str], list[tuple[RankRecord, int, Device]]] = {}
    for record in (rank.record for rank in launch.ranks if rank.record is not None):
        for index, device in enumerate(record.devices):
            if device.peak_memory_bytes is not None:
                users.setdefault((record.host, device.uuid), []).append((record, index, device))
    return [_peak(found, sizes) for found in users.values()]


def _peak(users: Sequence[tuple[RankRecord, int, Device]], sizes: Mapping[str, int | None]) -> Peak:
    """Return the peak of one GPU, given the ranks that use it, each with its own number and peak of it."""
    record, index, device = users[0]
    is_own = len(users) == len(record.devices) == 1
    return Peak(
        name=f"rank {record.rank}'s GPU" if is_own else f"GPU {index}",
        ranks=tuple(of.rank for of, _, _ in users),
        num_bytes=sum(of.peak_memory_bytes or 0 for _, _, of in users),
        total_bytes=device.memory_bytes or sizes.get(device.uuid),
    )


NO_COMM = "no_comm"
COALESCED = "coalesced"
NO_SYNC = "no_sync_accumulation"
# Scalars, such as a loss, are reduced beside gradients: a share of these.
BESIDE_GRADIENTS = 0.02
# What ranks exchange that hold equal parameters: buffers, and when to go on.
OF_EQUALS = frozenset({"broadcast", "barrier"})
# Functions of torch that run a backward pass, and how libraries name their own.
BACKWARDS = frozenset({"backward", "grad"})
# Phases of a step in which the host computes, if there is no GPU; the passes are of the samples.
PASSES = ("forward", "backward")
COMPUTING = (*PASSES, "optimizer")
HOST_IS_AHEAD = "a GPU's host runs ahead: how long a step takes it says nothing of the device's"
WHOLE = Figure(value=1.0, low=1.0, high=1.0, unit="ratio")
# A mode that ended like this trained nothing that a rule could judge or, inactive, what the baseline did.
NOTHING_TRAINED = frozenset({"failed", "skipped", "inactive"})
# What a script of its own wraps its model in, by the mode that does the same.
WRAPPERS = {"ddp": "ddp", "fsdp2": "fsdp", "fsdp1": "fsdp1"}
# nn.DataParallel drives its devices from one process, which exchanges nothing with others.
DATA_PARALLEL = "dp"


def _last(node: CallNode) -> str:
    """Return the name of a library's function without what it is in."""
    return node.where.rpartition(".")[2]


class ModeFacts(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """The facts of one mode, each found once, when it is first asked for.

    Attributes:
        modes: the summaries of all modes of the run, by name: some facts are differences to another one.
        launches: of this mode, with those that failed.
        cross_rank: what its ranks' traces show together; None: no rank left one.
    """

    name: str
    modes: Mapping[str, ModeSummary]
    spec: RunSpec
    fingerprint: Fingerprint
    launches: tuple[LaunchFacts, ...]
    cross_rank: CrossRank | None

    @property
    def mode(self) -> ModeSummary:
        """Return the mode's summary, as run.json has it."""
        return self.modes[self.name]

    @property
    def baseline(self) -> ModeSummary | None:
        """Return the summary of one device alone; None: it was not run."""
        return self.modes.get(BASELINE)

    @property
    def is_measured(self) -> bool:
        """Return whether the mode trained anything, and a clock or a trace timed it."""
        mode = self.mode
        return mode.status not in NOTHING_TRAINED and (mode.step.value is not None or mode.breakdown is not None)

    def ablation(self, name: str) -> AblationSummary | None:
        """Return an ablation that gave a share of the step; None: it was not asked for, or it was skipped."""
        ablation = self.mode.ablations.get(name)
        return ablation if ablation is not None and ablation.share.value is not None else None

    def share_of_step(self, seconds: Figure) -> Figure:
        """Return seconds per step as a share of the measured step; unknown with a reason where either is."""
        return stats.ratio(seconds, self.mode.step, "ratio")

    @cached_property
    def launch(self) -> LaunchFacts | None:
        """Return the launch that speaks for the mode; None where it trained nothing."""
        return shown(self.launches) if self.launches and self.mode.status not in NOTHING_TRAINED else None

    @cached_property
    def windows(self) -> tuple[tuple[LaunchFacts, Window], ...]:
        """Return the measured windows with nothing switched off, each with its launch."""
        return self._windows(with_edges=False)

    @cached_property
    def windows_with_edges(self) -> tuple[tuple[LaunchFacts, Window], ...]:
        """Return the same with those that steady figures of a GPU leave out, because an edge lies in them."""
        return self._windows(with_edges=True)

    def _windows(self, *, with_edges: bool) -> tuple[tuple[LaunchFacts, Window], ...]:
        held = self.launches if with_edges else of_one_kind(self.launches)
        good = (launch for launch in held if launch.record.status != "failed")
        return tuple((launch, window) for launch in good for window in launch.windows(with_edges=with_edges))

    @cached_property
    def traces(self) -> Traces:
        """Return the traces of its ranks, with the steps that count; empty where there are none."""
        return self.launch.traces if self.launch else Traces(())

    @cached_property
    def on_gpu(self) -> bool:
        """Return whether the mode trained on a GPU: its traces or its ranks say so."""
        by_trace = any(digest.has_device for digest in self.traces.digests)
        return by_trace or any(rank.device_type == "cuda" for rank in self.mode.ranks)

    def part_share(self, *parts: str) -> Figure:
        """Return the share of a traced step that these parts of the budget have together, over all devices."""
        return part_share(self.traces, *parts)

    def idle_share(self, *causes: str) -> Figure:
        """Return the share of a traced step in which a device idles for one of these causes."""
        return breakdown.idle_share(self.traces, *causes)

    def lost_to(self, cause: str) -> Figure:
        """Return the share of a traced step that is lost as devices idle for a cause.

        Ranks that communicate wait for the one that idles longest.
        """
        return breakdown.most_idle_share(self.traces, cause) if self.communicates else self.idle_share(cause)

    @cached_property
    def lost_to_receiving(self) -> Figure:
        """Return the share of a traced step that is lost as devices do nothing but receive; see lost_to."""
        return breakdown.most_receiving_share(self.traces) if self.communicates else self.part_share("h2d")

    def untraced_idle(self, *causes: str) -> Figure:
        """Return what `idle_share` does as it is without a profiler, where the untraced step is known."""
        return breakdown.untraced_idle(self.traces, self.mode.step.value, *causes)

    def untraced_lost_to(self, *causes: str) -> Figure:
        """Return the same of the rank that idles longest for these causes, where ranks communicate; see lost_to."""
        found = breakdown.most_untraced_idle if self.communicates else breakdown.untraced_idle
        return found(self.traces, self.mode.step.value, *causes)

    @property
    def waiting_share(self) -> Figure | None:
        """Return by how much a step is shorter without waits for the device that the script can leave out.

        Of the rank that gains most. None: that was not replayed, since nothing waits so or its traces do not tell.
        """
        return max(self._waiting_shares, key=lambda share: share.value or 0.0, default=None)

    @property
    def mean_waiting_share(self) -> Figure:
        """Return the mean of the same over all ranks, of which some may have nothing that waits so."""
        total = stats.combination([(1.0, share) for share in self._waiting_shares], "ratio")
        return stats.scaled(total, 1 / max(1, len(self.traces.digests)))

    @cached_property
    def _waiting_shares(self) -> list[Figure]:
        return breakdown.waiting_shares(self.traces, self.mode.step.value)

    @cached_property
    def communicates(self) -> bool:
        """Return whether ranks exchange tensors by collectives; nn.DataParallel does that in one process."""
        digests = self.traces.digests
        if self.launch is None or self.name == DATA_PARALLEL or any(digest.data_parallel for digest in digests):
            return False
        # A group of one rank has collectives, too, that go nowhere; of a trace nobody knows how many ranks there were.
        by_trace = any(digest.collectives or digest.unknown_communication for digest in digests)
        return self.mode.world_size > 1 or (self.name == TRACE_MODE and by_trace)

    @property
    def ways(self) -> tuple[Strategy, ...]:
        """Return how a script distributes itself; empty where dpdoctor does."""
        return self.mode.conversion.strategies if self.mode.conversion else ()

    @property
    def wrapper(self) -> str:
        """Return what exchanges gradients: ddp, fsdp (fully_shard) or fsdp1; empty: nothing of torch's."""
        if self.mode.native is None:
            return self.name
        return next((name for way, name in WRAPPERS.items() if any(found.name == way for found in self.ways)), "")

    @property
    def parameters_differ(self) -> bool:
        """Return whether ranks that start themselves were seen to hold different parameters, as sharded ones do."""
        proof = self.mode.conversion.proof if self.mode.conversion else ()
        return any(check.name == PARAMETERS_EQUAL and check.ok is None for check in proof)

    @property
    def may_split_model(self) -> bool:
        """Return whether ranks may each compute a part of one model, for which they need the same samples."""
        is_named = any(way.name == TENSOR_PARALLEL for way in self.ways)
        return is_named or (self.parameters_differ and (not self.wrapper or self.wraps_a_part))

    @property
    def wraps_a_part(self) -> bool:
        """Return whether DistributedDataParallel has only a part of what is trained, as a gate without its experts."""
        by_ddp = self._bytes_by_ddp
        return by_ddp is not None and by_ddp < self._trained_bytes and not self.leaves_a_part

    @property
    def leaves_a_part(self) -> bool:
        """Return whether DistributedDataParallel has only a part of what is trained, and nothing else is exchanged.

        Ranks that split a model exchange activations or tokens.
        """
        counters, by_ddp = self.mode.counters, self._bytes_by_ddp
        if counters is None or by_ddp is None or not by_ddp < self._trained_bytes:
            return False
        by_kind = {kind: of.num_bytes for kind, of in counters.collectives.items() if kind not in OF_EQUALS}
        return set(by_kind) <= {"all_reduce"} and sum(by_kind.values()) <= (1 + BESIDE_GRADIENTS) * by_ddp

    @property
    def _bytes_by_ddp(self) -> int | None:
        """Return the bytes that DistributedDataParallel trains; None: nothing, or nobody looked."""
        found = [way.trainable_bytes for way in self.ways if way.name == "ddp"]
        return None if not found or None in found else sum(filter(None, found))

    @property
    def _trained_bytes(self) -> int:
        return sum(unit.trainable_bytes for unit in self.mode.conversion.modules) if self.mode.conversion else 0

    @property
    def by_hand(self) -> Strategy | None:
        """Return what a script exchanges by itself, at the line with most calls; None: a wrapper does, or nothing."""
        return None if self.wrapper else max(self.own_exchanges, key=lambda way: way.calls, default=None)

    @property
    def own_exchanges(self) -> list[Strategy]:
        """Return what a script exchanges by itself, by line, beside a wrapper or without one."""
        return [way for way in self.ways if way.name == HAND_WRITTEN]

    @property
    def times_reduced(self) -> float | None:
        """Return how often a step reduces its gradients, by their bytes; None: they were not counted."""
        mode, trained = self.mode, self._trained_bytes
        if mode.counters is None:
            return None
        reduced = sum(of.num_bytes for kind, of in mode.counters.collectives.items() if "reduce" in kind)
        return reduced / trained if trained else None

    @cached_property
    def micro_batches(self) -> float:
        """Return the mean number of micro-batches of the steady steps of a measured window; 0 without any."""
        steps = [step for _, window in self.windows for rank in window.ranks for step in rank.steady]
        return sum(step.micro_batches for step in steps) / len(steps) if steps else 0.0

    @property
    def reduces_each_micro_batch(self) -> bool:
        """Return whether a step has several micro-batches and reduces gradients in each.

        What dpdoctor wraps does; what a script wraps, as far as the bytes tell that it reduces. Where ranks split a
        model, the bytes are of activations, too, and tell nothing.
        """
        if self.mode.native is None:
            return self.micro_batches > 1
        times = self.times_reduced
        return self.micro_batches > 1 and not self.may_split_model and (times is None or times >= REDUCED_TWICE)

    @property
    def reductions(self) -> float:
        """Return how often a step that reduces in several micro-batches does so: in each or, by its bytes, in some.

        Bytes tell it of DistributedDataParallel alone, without a hook: others may reduce in fewer bytes.
        """
        is_told = self.mode.native is not None and self.wrapper == "ddp" and not any(way.hook for way in self.ways)
        times = self.times_reduced if is_told else None
        return self.micro_batches if times is None else min(times, self.micro_batches)

    @property
    def reduced_words(self) -> str:
        """How many micro-batches a step has, and in how many of them it reduces gradients, in a clause."""
        micro_batches, times = units.digits(self.micro_batches), self.reductions
        if times >= (1 - BESIDE_GRADIENTS) * self.micro_batches:
            return f"a step has {micro_batches} micro-batches, and each one reduces its gradients"
        return f"a step has {micro_batches} micro-batches, and reduces gradients {units.digits(times)} times"

    @cached_property
    def library_backward(self) -> str:
        """Return the function of a library other than torch by which the script runs the backward pass.

        Empty: the script calls torch's, or nobody saw. The library's own is told by its name, or by most of the time.
        """
        records = [rank.record for rank in self.launch.ranks if rank.record] if self.launch else []
        tree = next((record.call_tree for record in records if record.call_tree), ())
        called = [node for node in tree if not node.function and node.parent >= 0 and tree[node.parent].function]
        of_torch = [node for node in called if node.where.startswith("torch.")]
        if any(_last(node) in BACKWARDS for node in of_torch):
            return ""
        looks = sum(node.looks for node in tree if node.parent < 0)
        found = [node for node in called if node not in of_torch]
        running = [node for node in found if _last(node) in BACKWARDS or 2 * node.looks > looks]
        return max(running, key=lambda node: node.looks).where if running else ""

    @cached_property
    def clocked_share(self) -> Figure:
        """Return the share of a step that the host spends in calls of collectives."""
        return clocked_share(self.launch) if self.launch else stats.unknown("ratio", NOT_TIMED)

    @cached_property
    def share_left_in(self) -> Figure:
        """Return the share of a step that the host spends in those calls that the ablation no_comm leaves in.

        It is no more than all calls take: where ranks wait for each other in the others, without them they wait in
        these. Unknown on a GPU, where calls return when they are queued.
        """
        ablation, step = self.ablation(NO_COMM), self.mode.step.value
        if self.launch is None or self.on_gpu or ablation is None or not ablation.step.value or not step:
            return stats.unknown("ratio", NOT_TIMED)
        left = stats.scaled(clocked_share(self.launch, NO_COMM), ablation.step.value / step)
        return min(left, self.clocked_share, key=lambda share: share.value or 0.0)

    @cached_property
    def exposure(self) -> Exposure | None:
        """Return the exposed and the removable communication; None: no traced step tells it."""
        if self.launch is None:
            return None
        found, most = exposure(self.launch, self.mode.world_size, self.fingerprint.cores), self._beyond_computing
        return found if found is None or most is None else found.at_most(most)

    @property
    def _beyond_computing(self) -> Figure | None:
        """Return the share of a step beyond what one device takes to compute as many samples; None: it is not known.

        Without communication a step computes no faster. On a GPU the host only queues what is computed; ranks that
        split a model compute less each; and a baseline that tells no speedup tells no bound.
        """
        alone, mode = self.baseline, self.mode
        if alone is None or mode.speedup.value is None or self.on_gpu or self.may_split_model:
            return None
        if not alone.batch.per_device or alone.batch.per_device != mode.batch.per_device:
            return None
        # With anything but DDP a rank may update only a part of the parameters.
        is_replicated = self.wrapper == "ddp" and all(way.name == "ddp" for way in self.ways)
        parts = [alone.phases[phase] for phase in (COMPUTING if is_replicated else PASSES) if phase in alone.phases]
        computing = stats.combination([(1.0, part) for part in parts if part.value is not None], "s")
        beyond = stats.combination([(1.0, WHOLE), (-1.0, self.share_of_step(computing))], "ratio")
        # A step that is shorter than computing alone was computed faster than on one device.
        return beyond if beyond.high is not None and beyond.high > 0 else None

    def exposed_calls_share(self, wanted: Callable[[str, int], bool], most: float = math.inf) -> Figure:
        """Return the share of a traced step that wanted collectives, at `most` so many, take while nothing computes."""
        return exposed_calls_share(self.traces, wanted, most)

    @cached_property
    def slowest_rank(self) -> SlowRank | None:
        """Return the rank that is slowest by itself; None: nothing tells, or there is one rank."""
        return slowest_rank(self.launches, NO_COMM, on_gpu=self.on_gpu)

    @cached_property
    def jitter_wait(self) -> Figure:
        """Return the share of a step that ranks cost each other which are late now and then; unknown on a GPU."""
        return stats.unknown("ratio", HOST_IS_AHEAD) if self.on_gpu else jitter_wait(self.launches, NO_COMM)

    @cached_property
    def jitter_phases(self) -> dict[str, float]:
        """Return what part of that lies in each phase of the host; empty on a GPU."""
        return {} if self.on_gpu else jitter_phases(self.launches, NO_COMM)

    @cached_property
    def uneven_batches(self) -> Unevenness | None:
        """Return what unequal batches cost; None: all batches of a step are alike."""
        return unevenness(self.windows, self.mode.world_size, self.traces, on_gpu=self.on_gpu)

    @cached_property
    def cores(self) -> Cores | None:
        """Return what ranks and loader processes take of the first host's cores; None: no rank left a record."""
        return cores(self.launch, self.fingerprint.cores) if self.launch else None

    @cached_property
    def others(self) -> str | None:
        """Return that other processes took cores while the mode was measured; None: none that were missed."""
        return while_measured(self.launch, self.fingerprint.cores)

    @cached_property
    def taken_from_a_worker(self) -> str | None:
        """Return that other processes took cores that one more loader process would have had; None: they did not."""
        return taken_from_a_worker(self.launch, self.fingerprint.cores) if self.launch else None

    @cached_property
    def waiting_for_cores(self) -> float:
        """Return the share of the measured time in which a rank's training thread waits for a core, the mean of all.

        0 where the kernel does not tell.
        """
        waits = waiting_for_cores(self.launch) if self.launch else []
        return sum(waits) / len(waits) if waits else 0.0

    def starts_more_than_others(self, rank: int) -> bool:
        """Return whether processes that this rank started keep its core busy, and not those of the others."""
        return starts_more_than_others(self.launch, rank) if self.launch else False

    @cached_property
    def is_busy(self) -> bool:
        """Return whether the whole machine had no idle core while the mode ran, whoever used them."""
        return is_busy(self.launch) if self.launch else False

    @cached_property
    def throttled(self) -> Throttled | str | None:
        """Return the GPU that was throttled most; None: none that is worth a word; str: why that is unknown."""
        return throttled(self.launch) if self.launch and self.on_gpu else None

    @cached_property
    def throttled_periods(self) -> Figure:
        """Return the share of a CPU quota's periods in which it was used up."""
        return throttled_periods(self.launches)

    @cached_property
    def memory_peaks(self) -> list[Peak]:
        """Return the most memory that each GPU held; empty on the CPU."""
        return peaks(self.launch, self.fingerprint.gpus) if self.launch else []

    @cached_property
    def loader_restarts(self) -> Restarts | None:
        """Return what it costs the loader to begin anew; None: that was not seen, or nobody knows how often."""
        if self.mode.loader is None:
            return None
        return restarts(self.launches, self.windows_with_edges, self.mode.loader, self.mode.epoch_s)

    @cached_property
    def loader_begins_every_step(self) -> bool:
        """Return whether most measured steps begin to iterate the loader that feeds them."""
        return self.mode.loader is not None and begins_every_step(self.windows_with_edges, self.mode.loader)

    @cached_property
    def loader_is_left_early(self) -> bool:
        """Return whether the script begins the loader anew though it has more batches to give."""
        return is_left_early(self.launches, self.mode)

    def share_of_events(self, kind: str) -> Figure:
        """Return the share of the steady steps' time that events of one kind took."""
        return share_of_events(self.windows, kind)

    def interruptions(self, kind: str) -> Interruptions | str | None:
        """Return what was seen of what interrupts training now and then, such as "checkpoint".

        None: nothing, though a whole epoch was seen or has no known length; str: why it cannot be told.
        """
        return interruptions(self.launch, self.windows, kind, self.mode.epoch_s) if self.launch else None


class Analysis(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A run with its figures: the summary, the run behind it for the curves, and by mode its ranks compared."""

    summary: RunSummary
    run: Run
    cross_rank: dict[str, CrossRank] = msgspec.field(default_factory=dict)

    @cached_property
    def facts(self) -> Mapping[str, ModeFacts]:
        """Return what is known of each mode, by name."""
        return {
            name: ModeFacts(
                name=name,
                modes=self.summary.modes,
                spec=self.run.header.spec,
                fingerprint=self.summary.fingerprint,
                launches=every(self.run.modes.get(name, ())),
                cross_rank=self.cross_rank.get(name),
            )
            for name in self.summary.modes
        }


class Diagnosis(Analysis, frozen=True):
    """An analysis that every rule was asked about: its summary holds what they found and what they cannot tell."""
