"""What communication costs a step, as it is seen while it is there."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.launches import NS, LaunchFacts, RankWindow
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.traces import CommonSteps, Traces, exposed_ns, hidden_ns
from dpdoctor.analysis.breakdown import part_share, share
from dpdoctor.analysis.loader.feed import feed
from dpdoctor.digest import DeviceStep, Digest
from dpdoctor.records import ALL_PHASES, COMMUNICATION, FULL, HAND_WRITTEN, NOW_AND_THEN, PHASES, Launch, Strategy

NO_TIME = "the traced steps took no time"
NO_PHASES = "the trace does not say in which phase of a step the host was"
NOT_TIMED = "nobody took the time of calls of collectives"
NOT_COUNTED = "nobody counted how long the training thread waits for a core"
# The strategy of a script that calls fully_shard.
FSDP2 = "fsdp2"


def exposed_share(traces: Traces) -> Figure:
    """Return the share of a traced step that communicates while nothing computes, on the rank where it is least.

    That rank is the one the others wait for: what it loses is what a step loses, the rest is the others' waiting for it
    and does not go away with the communication. (Rank r takes w_r(s) before it meets the others in step s. With
    communication a step takes E[max_r w_r] + transfer, without max_r E[w_r]; the difference is what the rank with the
    largest E[w_r] spends in communication.)
    """
    common, reason = traces.common, traces.why_unknown
    last = _last(traces.digests, common) if reason is None else None
    if last is None:
        return stats.unknown("ratio", reason or common.left_out or NO_TIME)
    parts = [(exposed_ns(step), step.breakdown.total_ns) for step in _steps(last, common)]
    return stats.ratio_of_totals(parts, "ratio")


def clocked_share(launch: LaunchFacts, ablation: str = FULL) -> Figure:
    """Return the share of an ablation's step that the host spends in calls of collectives, on the rank where it is
    least.

    As with `exposed_share`, that rank is the one the others wait for. Unknown where nobody took the time of such calls.
    """
    windows = launch.windows(ablation)
    is_timed = windows and all(len(s.phases_ns) == len(ALL_PHASES) for w in windows for r in w.ranks for s in r.steady)
    if not is_timed:
        return stats.unknown("ratio", NOT_TIMED)
    of_ranks = [
        [(window.ranks[rank].phase_s(COMMUNICATION), window.ranks[rank].steady_s) for window in windows]
        for rank in range(len(launch.ranks))
    ]
    least = min(of_ranks, key=lambda parts: sum(part for part, _ in parts) / sum(whole for _, whole in parts))
    return stats.ratio_of_totals(least, "ratio")


def _clocked(launch: LaunchFacts) -> Figure | None:
    """Return `clocked_share` where it shows what all exchanges take: Python makes each call, and waits for it.

    On a GPU calls return when they are queued. DistributedDataParallel exchanges in its own code, as operators do by
    functional collectives, and what the script begins while the backward pass goes on may be waited for elsewhere.
    """
    ways = [way for way in _ways(launch) if way.name != NOW_AND_THEN]
    is_seen = (way.name == FSDP2 or (way.name == HAND_WRITTEN and not way.in_backward) for way in ways)
    if not ways or launch.on_gpu or not all(is_seen) or not _calls_all(launch):
        return None
    share = clocked_share(launch)
    return share if share.value is not None else None


def is_clocked(launch: LaunchFacts) -> bool:
    """Return whether the host's clock of untraced steps shows all that ranks exchange."""
    return _clocked(launch) is not None


def _calls_all(launch: LaunchFacts) -> bool:
    """Return whether Python was seen to call every collective that was issued."""
    steps = (step for window in launch.windows() for rank in window.ranks for step in rank.steady)
    return all(step.called is not None and step.called == step.collectives for step in steps)


def _ways(launch: Launch) -> list[Strategy]:
    """Return how the ranks of a script distribute themselves; empty where dpdoctor does."""
    return [way for rank in launch.ranks if rank.record for way in rank.record.conversion.strategies]


class Removable(msgspec.Struct, frozen=True, kw_only=True):
    """What would go with the communication, as shares of a step, on the rank of `exposed_share`.

    Attributes:
        exposed: communication while nothing computes.
        is_clocked: that is by the host's clock of untraced steps, which shows all exchanges.
        on_cores: what it takes of the cores that compute; None: it has others, or there is no trace.
    """

    exposed: Figure
    is_clocked: bool
    on_cores: Figure | None = None

    @property
    def total(self) -> Figure:
        """Return both together."""
        if self.on_cores is None:
            return self.exposed
        return stats.combination([(1.0, self.exposed), (1.0, self.on_cores)], "ratio")


def removable(launch: LaunchFacts, cores: int) -> Removable:
    """Return what would go with the communication of a launch on machines of so many cores.

    On a GPU that is what nothing hides. Where communication runs on the cores that compute, the rank waits for those,
    too, and copies for it. What waits in a traced step waits as long in one without the profiler, which only makes the
    rest longer: so the exposed part is of the untraced step. Where the host's clock shows it, untraced steps tell it
    themselves.
    """
    traces, common = launch.traces, launch.traces.common
    clocked = _clocked(launch)
    alone = Removable(exposed=clocked or exposed_share(traces), is_clocked=clocked is not None)
    last = _last(traces.digests, common) if traces.why_unknown is None else None
    if last is None or not on_shared_cores(launch, cores):
        return alone
    steps = _steps(last, common)
    exposed = clocked or _of_untraced(launch, _per_step(steps, exposed_ns))
    found = replace(alone, exposed=exposed, on_cores=_on_cores(launch, last, steps, is_clocked=alone.is_clocked))
    total = found.total.value
    if total is None:  # what the clock shows is known all the same
        return alone if alone.is_clocked else found
    # More than a whole step: something took the cores while the trace was made. Then it tells of its own steps only.
    return alone if total >= 1 else found


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """What communication costs, as shares of a step.

    Attributes:
        total: of a traced step, communication beside which nothing computes: mean over ranks, with what they wait for
            each other.
        exposed: the same on the rank that has least of it, for which the others wait.
        on_cores: what communication takes of the cores that compute; None: it has others.
        removable: what would go with the communication.
        all_ranks: every rank left a trace; else the waiting cannot be told apart.
        clocked: what the host's clock of untraced steps shows, where it shows all exchanges; `removable` is by it then.
        bound: what `removable` was cut to; None: it is as it was seen.
    """

    total: Figure
    exposed: Figure
    on_cores: Figure | None
    removable: Figure
    all_ranks: bool
    clocked: Figure | None = None
    bound: float | None = None

    def at_most(self, share: Figure) -> Exposure:
        """Return the same, of which no more than this share of a step can be removed."""
        found, most = self.removable, max(0.0, share.value or 0.0)
        if found.value is None or found.value <= most:
            return self
        low, high = (
            None if one is None or other is None else max(0.0, min(one, other))
            for one, other in ((found.low, share.low), (found.high, share.high))
        )
        return replace(self, removable=replace(found, value=most, low=low, high=high), bound=most)


def exposure(launch: LaunchFacts, world_size: int, cores: int) -> Exposure | None:
    """Return what communication costs by a launch's traces; None: they hold no whole step, or do not tell it."""
    traces = launch.traces
    total = part_share(traces, "exposed_comm")
    if total.value is None:
        return None
    gone = removable(launch, cores)
    return Exposure(
        total=total,
        exposed=exposed_share(traces),
        on_cores=gone.on_cores,
        removable=gone.total,
        all_ranks=len(traces.digests) >= max(world_size, *(digest.world_size or 1 for digest in traces.digests)),
        clocked=gone.exposed if gone.is_clocked else None,
    )


def exposed_calls_share(traces: Traces, wanted: Callable[[str, int], bool], most: float = math.inf) -> Figure:
    """Return the share of a step that wanted collectives take while nothing computes, on the rank with least of it.

    `wanted` is asked with a call's operation and bytes (-1: unknown). The rank with least waits least for the others:
    what is left is transfer. Calls that overlap are counted once at most, by the step's own exposed communication.
    Of a step with more than `most` of them so many count, each as long as their mean.
    """
    counted = [digest for digest in traces.digests if any(device.steps for device in digest.devices)]
    exposed = [_wanted_ns(digest, wanted, most) for digest in counted]

    def least(steps: Sequence[DeviceStep]) -> float:
        of_calls = min(by_step.get(steps[0].step, 0) for by_step in exposed)
        return min(of_calls, *map(exposed_ns, steps))

    reason = traces.why_unknown
    return share(traces.with_calls, least) if reason is None else stats.unknown("ratio", reason)


def _wanted_ns(digest: Digest, wanted: Callable[[str, int], bool], most: float) -> dict[int, float]:
    calls, found = digest.calls, defaultdict[int, list[int]](list)
    for operation, num_bytes, step, ns in zip(
        calls.operation, calls.num_bytes, calls.step, calls.exposed_ns, strict=True
    ):
        if wanted(calls.names[operation], num_bytes):
            found[step].append(ns)
    return {step: sum(of_step) * min(1.0, most / len(of_step)) for step, of_step in found.items()}


def _on_cores(launch: LaunchFacts, last: Digest, steps: Sequence[DeviceStep], *, is_clocked: bool) -> Figure:
    """Return the share of a step that communication takes from computing on the same cores.

    There is what the host does for it without communicating; of fully_shard that is calls and waits in its hooks, which
    the host's clock shows whole. And beside communication the training thread waits for a core: the kernel counts that
    in the measured windows, where other processes are in it; it is no longer than that communication is. Where nobody
    counted, it is as long.
    """
    beside = _of_untraced(launch, _per_step(steps, hidden_ns))
    waited = _of_untraced(launch, _wait_for_core(launch, last))
    if waited.value is not None and beside.value is not None and waited.value < beside.value:
        beside = waited
    if is_clocked and any(way.name == FSDP2 for way in _ways(launch)):
        return beside
    return stats.combination([(1.0, _of_untraced(launch, _handling(launch, last, steps))), (1.0, beside)], "ratio")


def _handling(launch: LaunchFacts, last: Digest, steps: Sequence[DeviceStep]) -> Figure:
    """Return the seconds of an untraced step in which the host works for communication without communicating.

    The profiler slows it as it slows the phase that it is in, and not all phases alike: of each it has the same share.
    """
    rank = next(index for index, rank in enumerate(launch.ranks) if rank.digest is last)
    windows = [window.ranks[rank] for window in launch.windows()]
    phases = [phase for phase in PHASES if any(step.host_phases_ns.get(phase) for step in steps)]
    if not phases:
        return stats.unknown("s", NO_PHASES)
    return stats.combination([(_untraced_s(windows, phase), _handling_share(steps, phase)) for phase in phases], "s")


def _untraced_s(windows: Sequence[RankWindow], phase: str) -> float:
    """Return the seconds of one phase in a measured step of a rank."""
    return sum(w.phase_s(phase) for w in windows) / max(1, sum(len(w.steady) for w in windows))


def _handling_share(steps: Sequence[DeviceStep], phase: str) -> Figure:
    """Return the share of one phase of traced steps that is handling."""
    parts = [(step.comm_host_ns.get(phase, 0), step.host_phases_ns.get(phase, 0)) for step in steps]
    return stats.ratio_of_totals(parts, "ratio")


def on_shared_cores(launch: Launch, cores: int) -> bool:
    """Return whether ranks compute on all of a machine's `cores`, so that communication finds none of its own.

    Not with more threads than cores: a call then waits for a core, too, and its length is not what it takes of them.
    """
    records = [rank.record for rank in launch.ranks if rank.record and rank.record.device_type == "cpu"]
    threads: Counter[str] = Counter()
    for record in records:
        threads[record.host] += record.conversion.num_threads
    return max(threads.values(), default=0) == cores


def _wait_for_core(launch: LaunchFacts, last: Digest) -> Figure:
    """Return the seconds of a step in which the training thread could run and had no core.

    Unknown where it does not compute alone: a thread beside it may be the one that waits.
    """
    rank = next(rank for rank in launch.ranks if rank.digest is last)
    computes_alone = rank.record is not None and rank.record.conversion.num_threads == 1
    found = feed(launch) if computes_alone else None
    if found is None:
        return stats.unknown("s", NOT_COUNTED)
    parts = [part for part in found.parts if launch.ranks[part.rank] is rank]
    waited = [(sum(batch.gap_queued_ns for batch in part.steady) * NS, len(part.window.steady)) for part in parts]
    # A kernel that does not count says 0.
    return stats.ratio_of_totals(waited if any(seconds for seconds, _ in waited) else [], "s", reason=NOT_COUNTED)


def _of_untraced(launch: LaunchFacts, seconds: Figure) -> Figure:
    """Return seconds as a share of a step of the measured windows."""
    step = stats.ratio_of_totals([window.step() for window in launch.windows()], "s")
    return stats.ratio(seconds, step, "ratio")


def _last(digests: Sequence[Digest], common: CommonSteps) -> Digest | None:
    """Return that of the rank which communicates least while nothing computes; None: no step counts for any."""
    whole = [digest for digest in digests if sum(step.breakdown.total_ns for step in _steps(digest, common))]
    return min(whole, key=lambda digest: _exposed_ratio(_steps(digest, common)), default=None)


def _exposed_ratio(steps: Sequence[DeviceStep]) -> float:
    return sum(map(exposed_ns, steps)) / sum(s.breakdown.total_ns for s in steps)


def _steps(digest: Digest, common: CommonSteps) -> list[DeviceStep]:
    return [step for device in digest.devices for step in common.of(device)]


def _per_step(steps: Sequence[DeviceStep], part: Callable[[DeviceStep], int]) -> Figure:
    """Return the seconds of a part of a traced step."""
    return stats.mean_interval([part(step) * NS for step in steps], "s")
