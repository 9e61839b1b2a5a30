"""What the work of torch's wrappers takes: DDP by bucket, FSDP by unit, nn.DataParallel by part."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution import marks
from dpdoctor.attribution.collectives import Collectives
from dpdoctor.attribution.device_events import DeviceEvents, Part
from dpdoctor.attribution.host_events import host_rows, is_inside, running_at
from dpdoctor.attribution.intervals import Spans, contains, length, merge
from dpdoctor.attribution.steps import HostSteps, whole_steps
from dpdoctor.digest import HOST, Bucket, DataParallelCost, ShardUnit
from dpdoctor.trace.model import UNKNOWN, Events, Trace

_DDP_FORWARD = r"^DistributedDataParallel\.forward$"
_NODE = r"^autograd::engine::evaluate_function: "
_INT64 = np.iinfo(np.int64)
# One bucket for each parameter of a large model: more than anyone reads.
MAX_BUCKETS = 1_000
# DDP reduces a bucket in a hook of the node that accumulates the gradient by which it is full, after the node itself
# ran; SyncBatchNorm reduces in nodes of its own. Hooks of a script's on the parameter run before the node, or in it.
_GRADIENT = r"^autograd::engine::evaluate_function: torch::autograd::AccumulateGrad$"
_ACCUMULATING = r"^torch::autograd::AccumulateGrad$"
# Without DDP what is called there is a hook of the script's, too.
_DDP = rf"{_DDP_FORWARD}|{marks.DDP_REDUCER}"


class BackwardPasses(msgspec.Struct, frozen=True, kw_only=True):
    """What p backward passes computed on one device.

    Attributes:
        forward_ns: int64[p], sorted, on the host: a pass is all that is called from one to the next.
        is_whole: bool[p]: the pass is in a whole step and computed something.
        begin_ns, end_ns: int64[p], on the device, of its compute.
        called_ns, done_ns: int64[m]: of compute in the order of its calls, when it was called, and when all of it up to
            there was done.
    """

    forward_ns: NDArray[np.int64]
    is_whole: NDArray[np.bool_]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    called_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]

    def of(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the pass in which something was called at each time; -1: in no whole one."""
        number = np.searchsorted(self.forward_ns, times, side="right") - 1
        return np.where(np.append(self.is_whole, False)[number], number, -1)

    def done_before(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return when all was done that had been called before each time."""
        return np.concatenate(([_INT64.min], self.done_ns))[np.searchsorted(self.called_ns, times)]


def backward_passes(
    trace: Trace, steps: HostSteps, observed: Sequence[DeviceEvents], device: DeviceEvents
) -> BackwardPasses:
    """Return the passes on one of the observed devices: from one forward of DDP to the next, else those of the steps.

    The compute of a backward is what the nodes of autograd launch; DDP's copies out of its buckets come after them.
    """
    forward = np.sort(trace.events.begin_ns[host_rows(trace, _DDP_FORWARD)])
    if not len(forward):
        forward = steps.spans[:, 0]
    nodes = host_rows(trace, _NODE)
    is_backward = (device.part == Part.COMPUTE) & is_inside(
        trace.events, nodes, device.call_thread, device.call_begin_ns
    )
    at = np.flatnonzero(is_backward)
    at = at[np.argsort(device.call_begin_ns[at], kind="stable")]
    called = device.call_begin_ns[at]
    number = np.searchsorted(forward, called, side="right") - 1
    begin, end = np.full(len(forward), _INT64.max), np.full(len(forward), _INT64.min)
    np.minimum.at(begin, number[number >= 0], device.events.begin_ns[at[number >= 0]])
    np.maximum.at(end, number[number >= 0], device.events.end_ns[at[number >= 0]])
    return BackwardPasses(
        forward_ns=forward,
        is_whole=contains(whole_steps(steps, observed), forward) & (begin < end),
        begin_ns=begin,
        end_ns=end,
        called_ns=called,
        done_ns=np.maximum.accumulate(device.events.end_ns[at]),
    )


def buckets(trace: Trace, steps: HostSteps, observed: Sequence[DeviceEvents], found: Collectives) -> tuple[Bucket, ...]:
    """Return the first MAX_BUCKETS buckets of DDP in the order of their calls; empty for traces without any.

    Medians over the backward passes of whole steps that have as many buckets as most have: DDP's first has one, later
    ones have more. On a device with several, of the one whose buckets come first.
    """
    calls = np.flatnonzero(_reduces_buckets(trace, found))
    device = next((device for device in observed if device.index in found.device[calls[:1]]), None)
    if device is None:
        return ()
    calls = calls[found.device[calls] == device.index]
    passes = backward_passes(trace, steps, observed, device)
    called = trace.events.begin_ns[found.caller[calls]]
    number = passes.of(called)
    order = np.lexsort((called, number))
    order = order[_is_usual(number[order])]
    if not len(order):
        return ()
    num_passes = len(np.unique(number[order]))
    order = order.reshape(num_passes, -1)[:, :MAX_BUCKETS]
    return _medians(found, calls[order], called[order], passes, number[order[:, 0]], on_host=device.index == HOST)


def _reduces_buckets(trace: Trace, found: Collectives) -> NDArray[np.bool_]:
    """Return bool[n]: which calls are all-reduces that DDP made when a gradient had been accumulated."""
    events, caller = trace.events, found.caller
    is_reduce = np.array([name == "all_reduce" for name in found.operations], bool) & (caller != UNKNOWN)
    if not is_reduce.any() or not len(host_rows(trace, _DDP)):
        return np.zeros_like(is_reduce)
    called, nodes, runs = events.begin_ns[caller], host_rows(trace, _GRADIENT), host_rows(trace, _ACCUMULATING)
    node = running_at(events, nodes, events.thread[caller], called)
    of_run = running_at(events, nodes, events.thread[runs], events.begin_ns[runs])
    ran_ns = np.full(len(events), _INT64.min)
    ran_ns[of_run[of_run != UNKNOWN]] = events.end_ns[runs[of_run != UNKNOWN]]
    return np.asarray(is_reduce & (node != UNKNOWN) & (ran_ns[node] <= called))


def _is_usual(numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool[n]: which of these pass numbers occur as often as most passes that have any; not the number -1."""
    counts = np.bincount(numbers[numbers >= 0], minlength=1)
    usual = np.argmax(np.bincount(counts[counts > 0], minlength=1))
    return np.asarray((numbers >= 0) & (counts[numbers] == usual))


def _medians(
    found: Collectives,
    calls: NDArray[np.int64],
    called_ns: NDArray[np.int64],
    passes: BackwardPasses,
    numbers: NDArray[np.int64],
    *,
    on_host: bool,
) -> tuple[Bucket, ...]:
    """Return the buckets of calls[p, b], made at called_ns[p, b]; `numbers` are those of the p passes.

    A device begins to reduce when all is done that was launched before the call; a host, when it is called.
    """
    begin, end = found.begin_ns[calls], found.end_ns[calls]
    ready = called_ns if on_host else np.maximum(called_ns, passes.done_before(called_ns))
    from_begin = passes.begin_ns[numbers][:, None]
    tail = np.maximum(end - np.maximum(begin, passes.end_ns[numbers][:, None]), 0)
    times = np.stack((ready - from_begin, end - from_begin, found.exposed_ns[calls], tail))
    num_bytes = found.num_bytes[calls]
    is_known = (num_bytes[0] != UNKNOWN) & (num_bytes == num_bytes[0]).all(axis=0)
    return tuple(
        Bucket(
            order=order, num_bytes=size if known else None, ready_ns=ready, end_ns=end, exposed_ns=exposed, tail_ns=tail
        )
        for order, (size, known, (ready, end, exposed, tail)) in enumerate(
            zip(
                num_bytes[0].tolist(),
                is_known.tolist(),
                np.median(times, axis=1).astype(np.int64).T.tolist(),
                strict=True,
            )
        )
    )


MAX_UNITS = 1_000
# What FSDP2 names around its calls; the module's name follows in brackets, the root has none or an empty one.
_FSDP_CALLS = r"^FSDP::(?:all_gather|post_backward_reduce)(?! for)\b"
_FSDP_PREFETCH = r"^FSDP::(?:forward|backward)_prefetch for "
_FSDP_UNIT = re.compile(r"^FSDP::\w+ \((?P<module>.*?)\)(?P<group> \[pg=.*\])?$")


def shard_units(
    trace: Trace, steps: HostSteps, observed: Sequence[DeviceEvents], found: Collectives
) -> tuple[ShardUnit, ...]:
    """Return the first MAX_UNITS units in the order of their first call; empty without FSDP2 or without whole steps.

    FSDP1 does not name its units, and is not seen.
    """
    events, caller = trace.events, found.caller
    whole = whole_steps(steps, observed)
    threads = np.where(caller == UNKNOWN, UNKNOWN, events.thread[caller])
    called = events.begin_ns[caller]
    span = running_at(events, host_rows(trace, _FSDP_CALLS), threads, called)
    span[~contains(whole, called)] = UNKNOWN
    is_prefetch = is_inside(events, host_rows(trace, _FSDP_PREFETCH), threads, called)
    members: defaultdict[str, list[int]] = defaultdict(list)
    for index in np.flatnonzero(span != UNKNOWN).tolist():
        members[_unit(trace.names[events.name[span[index]]])].append(index)
    units = list(members.items())[:MAX_UNITS]
    return tuple(_shard_unit(name, found, np.array(at), is_prefetch, len(whole)) for name, at in units)


def _unit(span_name: str) -> str:
    match = _FSDP_UNIT.match(span_name)
    return (match["module"] + (match["group"] or "") if match else "") or "root"


def _shard_unit(
    name: str, found: Collectives, calls: NDArray[np.int64], is_prefetch: NDArray[np.bool_], num_steps: int
) -> ShardUnit:
    gathers, scatters = (
        calls[[found.operations[index] == operation for index in calls.tolist()]]
        for operation in ("all_gather", "reduce_scatter")
    )
    return ShardUnit(
        name=name,
        all_gathers=len(gathers) / num_steps,
        reduce_scatters=len(scatters) / num_steps,
        gathered_bytes=_bytes_per_step(found.num_bytes[gathers], num_steps),
        scattered_bytes=_bytes_per_step(found.num_bytes[scatters], num_steps),
        exposed_ns=int(found.exposed_ns[calls].sum()) / num_steps,
        prefetched=float(is_prefetch[gathers].mean()) if len(gathers) else None,
    )


def _bytes_per_step(num_bytes: NDArray[np.int64], num_steps: int) -> float | None:
    """Return the bytes per step; None where the trace does not say those of every call."""
    return None if (num_bytes == UNKNOWN).any() else int(num_bytes.sum()) / num_steps


_DP_BROADCAST = r"^Broadcast$"
# The backward of a gather scatters, and that of a broadcast adds up: by the same operators, counted alike.
_DP_OPERATORS = {"scatter": r"^Scatter$", "gather": r"^Gather$", "reduce": r"^ReduceAddCoalesced$"}
_Rows = NDArray[np.int64]


def data_parallel_cost(trace: Trace, steps: HostSteps, observed: Sequence[DeviceEvents]) -> DataParallelCost | None:
    """Return the means over whole steps; None: none of them has a forward of DataParallel.

    Replicating lasts from the broadcast of the parameters until a replica's thread launches something; the replicas
    then run until their outputs are gathered. Neither has a span of its own.
    """
    whole = whole_steps(steps, observed)
    forwards = _in_whole_steps(trace, marks.DP_FORWARD, whole)
    if not len(forwards):
        return None
    operators = {part: _in_whole_steps(trace, sign, whole) for part, sign in _DP_OPERATORS.items()}
    operators["broadcast"] = _in_whole_steps(trace, _DP_BROADCAST, whole)
    stages = [_dp_stages(trace.events, row, operators, observed) for row in forwards.tolist()]
    times = {
        "replicate": merge(*(replicate for replicate, _ in stages)),
        "parallel_apply": merge(*(apply for _, apply in stages)),
    }
    host_ns = {part: int(trace.events.duration_ns[operators[part]].sum()) for part in _DP_OPERATORS}
    host_ns |= {part: length(spans) for part, spans in times.items()}
    return DataParallelCost(
        **{f"{part}_ns": ns / len(whole) for part, ns in host_ns.items()},
        device_ns={
            device.index: {
                part: ns / len(whole) for part, ns in _dp_busy(trace.events, device, whole, operators, times).items()
            }
            for device in observed
        },
    )


def _in_whole_steps(trace: Trace, pattern: str, whole: Spans) -> _Rows:
    rows = host_rows(trace, pattern)
    return rows[contains(whole, trace.events.begin_ns[rows])]


def _dp_stages(
    events: Events, forward: int, operators: Mapping[str, _Rows], observed: Sequence[DeviceEvents]
) -> tuple[Spans, Spans]:
    """Return when a forward replicated and when its replicas ran, int64[1, 2] each."""
    thread, begin, end = events.thread[forward], events.begin_ns[forward], events.end_ns[forward]

    def inside(part: str) -> _Rows:
        rows = operators[part]
        is_inside = (events.begin_ns[rows] >= begin) & (events.end_ns[rows] <= end)
        return np.compress(is_inside & (events.thread[rows] == thread), rows)

    scattered = events.end_ns[inside("scatter")].max(initial=begin)
    broadcast = inside("broadcast")
    begun = events.begin_ns[broadcast].min(initial=end) if len(broadcast) else scattered
    sent = events.end_ns[broadcast].max(initial=scattered)
    gathered = max(events.begin_ns[inside("gather")].min(initial=end), sent)
    launched = [
        device.call_begin_ns[(device.call_thread != thread) & (device.call_thread != UNKNOWN)] for device in observed
    ]
    of_replicas = np.concatenate(launched)
    of_replicas = of_replicas[(of_replicas >= sent) & (of_replicas < gathered)]
    running = of_replicas.min(initial=gathered) if len(of_replicas) else sent
    return np.array([[begun, running]], np.int64), np.array([[running, gathered]], np.int64)


def _dp_busy(
    events: Events, device: DeviceEvents, whole: Spans, operators: Mapping[str, _Rows], times: Mapping[str, Spans]
) -> dict[str, int]:
    """Return how long a device ran what each part launched in whole steps; "other" is the rest, "busy" is all."""
    called, thread = device.call_begin_ns, device.call_thread
    left = contains(whole, called)
    chosen = {"busy": left}
    for part in _DP_OPERATORS:
        chosen[part] = left & is_inside(events, operators[part], thread, called)
        left = left & ~chosen[part]
    for part, spans in times.items():
        chosen[part] = left & contains(spans, called)
        left = left & ~chosen[part]
    chosen["other"] = left
    return {part: length(merge(device.events.spans_of(mask))) for part, mask in chosen.items()}
