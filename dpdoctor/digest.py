"""What is kept of one rank's trace: small for any trace, enough for every report section and for comparing ranks.

Times are in ns; `begin_ns` counts from the trace's base, which `base_ns` puts into unix time. A figure that the trace
does not hold is None, and `not_measured` says why.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from dpdoctor import units

SCHEMA = 2
# What a trace without anything of a device or of a host that computes lacks, in NotMeasured.
TIME = "time breakdown"
# The index of the "device" of a rank that has none: its training thread, with the backend's threads for communication.
HOST = -1
IDLE_CAUSES = (
    "data",  # the launching thread waits for the loader
    "sync",  # it waits for the device, or launches anew after it did
    "allocator",
    "gc",
    "comm_wait",  # it waits for a collective without a kernel
    "annotation",  # inside of a span that the script named and that launches no kernel: a checkpoint, a log
    "optimizer",  # it launches the update
    "dispatch",  # it runs operators: bound by launching
    "script",  # in code of the training loop between loading, forward, backward and update; only our traces tell
    "python",  # none of these
    "launch_latency",  # the kernel was launched and not begun
    "dependency",  # launched long ago, waiting for other work of the device
    "unknown",  # the trace does not hold the call that launched what came next, or no operators at all
)
# How many kernels are named that might be communication, and to how many characters: most up to their parameters.
MOST_SUSPECTS = 3
LONGEST_SUSPECT = 80
NAME_THEM = "--comm-kernels REGEX names those that do"
PHASES = ("forward", "backward", "optimizer", "other")
# On the host's clock; of two that are nested the first is the inner one.
HOST_PHASES = ("data_wait", "h2d", "forward", "backward", "optimizer", "other")
# What the training thread runs where a trace does not mark phases.
OPERATORS = "operators"
# What lies between two of them in one step is of this one: a loss that is computed outside of the module is forward,
# clipping is the update's. Data and copies may lie between, too.
BETWEEN_PHASES = {
    ("forward", "backward"): "forward",
    ("forward", "optimizer"): "forward",
    ("backward", "backward"): "backward",
    ("backward", "optimizer"): "optimizer",
}


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stretch of time went on one device; the five parts add up to it.

    What runs beside compute is compute; beside communication, communication; then copies to the device, then others.

    Attributes:
        compute_ns: may hold communication where that is unknown.
        exposed_comm_ns: None: unknown; the other four then add up.
        comm_ns: all communication, hidden or not; not one of the five. None: unknown.
    """

    compute_ns: int
    exposed_comm_ns: int | None
    h2d_ns: int
    copy_ns: int
    idle_ns: int
    comm_ns: int | None

    def __post_init__(self) -> None:
        if min(self.compute_ns, self.exposed_comm_ns or 0, self.h2d_ns, self.copy_ns, self.idle_ns) < 0:
            raise ValueError(f"a part of the breakdown is negative: {self}")
        if (self.exposed_comm_ns is None) != (self.comm_ns is None):
            raise ValueError(f"only a part of the communication is unknown: {self}")

    @property
    def total_ns(self) -> int:
        """The length of the stretch."""
        return self.compute_ns + (self.exposed_comm_ns or 0) + self.h2d_ns + self.copy_ns + self.idle_ns

    def without_communication(self) -> Breakdown:
        """Return the same time where communication is unknown: what was taken for it may as well be compute."""
        busy = self.compute_ns + (self.exposed_comm_ns or 0)
        return replace(self, compute_ns=busy, exposed_comm_ns=None, comm_ns=None)


class DeviceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step on one device: windows that tile time, from the end of the last kernel of the step before to its own.

    Attributes:
        step: the number in ProfilerStep#n, else counted from 0.
        idle_by: the idle part by cause, keys of IDLE_CAUSES; adds up to breakdown.idle_ns.
        phases_ns: busy time by who launched it, keys of PHASES.
        host_phases_ns: of the host without a device, its time by what the training thread was at, keys of
            HOST_PHASES; adds up to the step.
        comm_host_ns: of each of these, what was done for communication without communicating: copying for DDP, and in
            FSDP's hooks all that is no copying.
    """

    step: int
    begin_ns: int
    end_ns: int
    breakdown: Breakdown
    idle_by: dict[str, int] = msgspec.field(default_factory=dict)
    phases_ns: dict[str, int] = msgspec.field(default_factory=dict)
    host_phases_ns: dict[str, int] = msgspec.field(default_factory=dict)
    comm_host_ns: dict[str, int] = msgspec.field(default_factory=dict)


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """When one thing was done in a step.

    Attributes:
        device: HOST: the training thread or, of `compute` and `comm`, what computes where there is no device.
        what: of the training thread one of HOST_PHASES, or OPERATORS where the trace marks none; of a device compute,
            comm, h2d or copy, which may overlap each other.
        spans_ns: begin, end, begin, end, ... since TracedStep.begin_ns; sorted and disjoint.
    """

    device: int
    what: str
    spans_ns: tuple[int, ...]

    def joined(self, other: Lane) -> Lane:
        """Return the times that are in either lane."""
        pairs = sorted(zip(*[iter(self.spans_ns + other.spans_ns)] * 2, strict=True))
        found: list[int] = []
        for begin, end in pairs:
            if found and begin <= found[-1]:
                found[-1] = max(found[-1], end)
            else:
                found += (begin, end)
        return replace(self, spans_ns=tuple(found))


class TracedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One whole step as a timeline, from the host's begin of it until host and devices are through with it.

    `step` is DeviceStep's. Spans between which there is less than `finest_ns` are one.
    """

    step: int
    begin_ns: int
    duration_ns: int
    finest_ns: int
    lanes: tuple[Lane, ...]

    def without_communication(self) -> TracedStep:
        """Return the step with what was taken for communication as compute."""
        comm = {lane.device: lane for lane in self.lanes if lane.what == "comm"}
        lanes = [lane for lane in self.lanes if lane.what != "comm"]
        found = tuple(
            lane.joined(comm.pop(lane.device)) if lane.what == "compute" and lane.device in comm else lane
            for lane in lanes
        )
        alone = tuple(replace(lane, what="compute") for lane in comm.values())
        return replace(self, lanes=found + alone)


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of n durations."""

    n: int
    p50_ns: int
    p90_ns: int
    max_ns: int


class DeviceDigest(msgspec.Struct, frozen=True, kw_only=True):
    """One device of one rank.

    Attributes:
        index: as CUDA counts in this process; HOST: there is no device.
        begin_ns: of the first event on it.
        whole: from the first event to the end of the last.
        idle_by: the idle part of `whole` by cause, as in DeviceStep.
        num_dropped: steps beyond the limit that are not here.
        steps: whole steps only; the first and last are cut by the profiler and left out where there are enough.
        launch_delay: from the end of the launching call to the kernel's begin.
        launches: of kernels and memsets in the steps' windows; of a graph all are one.
        peak_allocated_bytes, peak_reserved_bytes: from the allocator's events; None: memory was not profiled.
    """

    index: int
    name: str
    begin_ns: int
    whole: Breakdown
    steps: tuple[DeviceStep, ...]
    num_dropped: int = 0
    launch_delay: Quantiles | None
    launches: int
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    idle_by: dict[str, int] = msgspec.field(default_factory=dict)


class NamedTime(msgspec.Struct, frozen=True, kw_only=True):
    """The total of all events of one name. For operators `self_ns` leaves out what they called; None for kernels."""

    name: str
    count: int
    total_ns: int
    self_ns: int | None = None
    device: int = HOST


class CollectiveSize(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one operation with one size and type in one group. Bandwidths: nccl-tests' definitions, GB = 1e9.

    Attributes:
        operation: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, send, recv, ...
        num_bytes: of the whole tensor, as nccl-tests count them; None: not said.
        group: its name; empty: not said, and then several groups may be one.
        exposed_ns: of total_ns, while nothing computed.
        algbw_gb_s: at the median duration, which includes waiting for peers; None without a size.
        busbw_gb_s: None also where it depends on the number of ranks and that is not known.
        dtype: of the elements as the trace has it, in small letters: float, bfloat16, ...; empty: it does not say.
    """

    operation: str
    group: str
    group_size: int | None
    num_bytes: int | None
    count: int
    total_ns: int
    exposed_ns: int
    median_ns: int
    min_ns: int
    algbw_gb_s: float | None
    busbw_gb_s: float | None
    dtype: str = ""


class SmallCalls(msgspec.Struct, frozen=True, kw_only=True):
    """How many calls of one operation in one group are too small for their size to matter.

    Attributes:
        latency_ns: of a call of no size, waiting for peers included; an upper bound.
        bandwidth_gb_s: of a call of any size, the latency left out.
        limit_bytes: a smaller call is latency-bound: a quarter of the size at which latency and transfer take alike.
        count: calls of known size; the others are figures of those below the limit.
    """

    operation: str
    group: str
    latency_ns: int
    bandwidth_gb_s: float
    limit_bytes: int
    count: int
    small_count: int
    small_total_ns: int
    small_exposed_ns: int


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Each collective call of this rank in the order of its begin, as columns, for comparing ranks.

    Attributes:
        operation, group: index into `names`; a group without a name: the trace does not say.
        seq: -1 where the trace has none.
        num_bytes: -1 where not said.
        step: as in DeviceStep; -1 outside of every step.
        segment_cause: index into `causes`: what the most of the local work before it was, from the end of all earlier
            calls to this begin: compute, copy or one of IDLE_CAUSES; none: there was no time between.
        num_dropped: calls beyond the limit that are not here.
    """

    names: tuple[str, ...]
    causes: tuple[str, ...]
    operation: tuple[int, ...]
    group: tuple[int, ...]
    seq: tuple[int, ...]
    num_bytes: tuple[int, ...]
    begin_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    exposed_ns: tuple[int, ...]
    step: tuple[int, ...]
    segment_cause: tuple[int, ...]
    num_dropped: int = 0


NO_CALLS = Calls(
    names=(),
    causes=(),
    operation=(),
    group=(),
    seq=(),
    num_bytes=(),
    begin_ns=(),
    end_ns=(),
    exposed_ns=(),
    step=(),
    segment_cause=(),
)


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """One gradient bucket of DDP, medians over backward passes; times from the begin of the backward's compute.

    Attributes:
        order: in which the buckets are reduced, from 0.
        ready_ns: when its all-reduce was called and, on a device, all was done that had been launched before.
        tail_ns: what its communication goes on after the last compute of backward; only the last ones have any.
    """

    order: int
    num_bytes: int | None
    ready_ns: int
    end_ns: int
    exposed_ns: int
    tail_ns: int


class ShardUnit(msgspec.Struct, frozen=True, kw_only=True):
    """One wrap unit of FSDP, per step (means).

    Attributes:
        name: the module's, as torch writes it into the trace; "root" without one.
        prefetched: share of its all-gathers that were issued before the unit's forward or backward asked for them; None
            without any.
    """

    name: str
    all_gathers: float
    reduce_scatters: float
    gathered_bytes: float | None
    scattered_bytes: float | None
    exposed_ns: float
    prefetched: float | None


class DataParallelCost(msgspec.Struct, frozen=True, kw_only=True):
    """What nn.DataParallel's own work takes of a step on the host and, by device, on the GPUs (means per step, ns).

    Attributes:
        device_ns: by device, how long it ran what scatter, replicate, parallel_apply, gather, reduce and other launched
            (other: backward, loss and update), and busy: all of that. It shows a device's excess over the others.
    """

    scatter_ns: float
    replicate_ns: float
    parallel_apply_ns: float
    gather_ns: float
    reduce_ns: float
    device_ns: dict[int, dict[str, float]] = msgspec.field(default_factory=dict)


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Traced steps replayed with and without the host's waits for a device that a script can leave out.

    Attributes:
        num_steps: how many were replayed.
        host_times: by what the host's own time is multiplied, from 1 downwards: a profiler slows the host.
        step_ns, without_ns: a step as it is and without these waits, for each of them (means).
    """

    num_steps: int
    host_times: tuple[float, ...]
    step_ns: tuple[int, ...]
    without_ns: tuple[int, ...]


class NotMeasured(msgspec.Struct, frozen=True, kw_only=True):
    """Something that this trace cannot tell, and why."""

    what: str
    reason: str


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's trace.

    Attributes:
        source: the trace's file name.
        has_device: False on CPU-only traces; `devices` then holds the HOST.
        step_source: what the steps were read from: ProfilerStep, Optimizer.step, none.
        traced_steps: those nearest to the median length, by number; empty: no step is whole.
        replay: what waiting for the device costs; None: nothing waits that could do without, or it cannot be told.
        group_ranks: by the name of a process group, the ranks in it, as far as the trace says; not of the largest.
        unknown_communication: why it is unknown what the rank communicates, in a clause; nothing here rests on it then.
        damage: where and why the file stops being readable.
    """

    schema: int = SCHEMA
    source: str
    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    base_ns: int
    has_device: bool
    step_source: str
    num_events: int
    devices: tuple[DeviceDigest, ...]
    kernels: tuple[NamedTime, ...]
    operators: tuple[NamedTime, ...]
    collectives: tuple[CollectiveSize, ...]
    calls: Calls
    small_calls: tuple[SmallCalls, ...] = ()
    buckets: tuple[Bucket, ...] = ()
    shard_units: tuple[ShardUnit, ...] = ()
    data_parallel: DataParallelCost | None = None
    traced_steps: tuple[TracedStep, ...] = ()
    replay: Replay | None = None
    group_ranks: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    unknown_communication: str | None = None
    damage: str | None = None
    notes: tuple[str, ...] = ()
    not_measured: tuple[NotMeasured, ...] = ()

    @property
    def untold(self) -> str | None:
        """Return in a clause why the trace does not tell where the time went; None: it does."""
        return next((item.reason for item in self.not_measured if item.what == TIME), None)

    def without_communication(self, reason: str) -> Digest:
        """Return the digest of a rank whose communication is unknown: what would rest on it is left out."""
        return replace(
            self,
            devices=tuple(map(_without_communication, self.devices)),
            collectives=(),
            calls=NO_CALLS,
            small_calls=(),
            buckets=(),
            shard_units=(),
            traced_steps=tuple(step.without_communication() for step in self.traced_steps),
            unknown_communication=reason,
        )


def _without_communication(device: DeviceDigest) -> DeviceDigest:
    steps = tuple(replace(step, breakdown=step.breakdown.without_communication()) for step in device.steps)
    return replace(device, whole=device.whole.without_communication(), steps=steps)


def nothing_known(of: str, suspects: Sequence[str], notes: Sequence[str] = ()) -> str:
    """Return in a clause why the communication of a rank with devices is unknown: it is one `of` so many."""
    largest = f"the largest that may: {', '.join(suspects)}" if suspects else "operators of torch launched them all"
    clauses = [f"this is one of {of}, and no kernel is known to communicate", *notes, largest, NAME_THEM]
    return "; ".join(clauses)


def kernel_words(name: str, total_ns: int) -> str:
    """Return a kernel's name without its parameters, and its time."""
    short = name.removeprefix("void ").partition("(")[0] or name
    if len(short) > LONGEST_SUSPECT:
        short = f"{short[:LONGEST_SUSPECT]}..."
    return f"{short} ({units.seconds(total_ns * 1e-9)})"
