"""What nn.DataParallel's own work takes: on the host by part, on every device by which part launched it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution import marks, nesting
from dpdoctor.attribution.callers import host_rows
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.intervals import Spans, contains, length, merge
from dpdoctor.attribution.steps import HostSteps, whole_steps
from dpdoctor.digest import DataParallelCost
from dpdoctor.trace.model import UNKNOWN, Events, Trace

_BROADCAST = r"^Broadcast$"
# The backward of a gather scatters, and that of a broadcast adds up: by the same operators, counted alike.
_OPERATORS = {"scatter": r"^Scatter$", "gather": r"^Gather$", "reduce": r"^ReduceAddCoalesced$"}
_Rows = NDArray[np.int64]


def data_parallel_cost(trace: Trace, steps: HostSteps, observed: Sequence[DeviceEvents]) -> DataParallelCost | None:
    """Return the means over whole steps; None: none of them has a forward of DataParallel.

    Replicating lasts from the broadcast of the parameters until a replica's thread launches something; the replicas
    then run until their outputs are gathered. Neither has a span of its own.
    """
    whole = whole_steps(steps, observed)
    forwards = _within(trace, marks.DP_FORWARD, whole)
    if not len(forwards):
        return None
    operators = {part: _within(trace, sign, whole) for part, sign in _OPERATORS.items()}
    operators["broadcast"] = _within(trace, _BROADCAST, whole)
    stages = [_stages(trace.events, row, operators, observed) for row in forwards.tolist()]
    times = {
        "replicate": merge(*(replicate for replicate, _ in stages)),
        "parallel_apply": merge(*(apply for _, apply in stages)),
    }
    host_ns = {part: int(trace.events.duration_ns[operators[part]].sum()) for part in _OPERATORS}
    host_ns |= {part: length(spans) for part, spans in times.items()}
    return DataParallelCost(
        **{f"{part}_ns": ns / len(whole) for part, ns in host_ns.items()},
        device_ns={
            device.index: {
                part: ns / len(whole) for part, ns in _busy(trace.events, device, whole, operators, times).items()
            }
            for device in observed
        },
    )


def _within(trace: Trace, pattern: str, whole: Spans) -> _Rows:
    rows = host_rows(trace, pattern)
    return rows[contains(whole, trace.events.begin_ns[rows])]


def _stages(
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


def _busy(
    events: Events, device: DeviceEvents, whole: Spans, operators: Mapping[str, _Rows], times: Mapping[str, Spans]
) -> dict[str, int]:
    """Return how long a device ran what each part launched in whole steps; "other" is the rest, "busy" is all."""
    called, thread = device.call_begin_ns, device.call_thread
    left = contains(whole, called)
    chosen = {"busy": left}
    for part in _OPERATORS:
        chosen[part] = left & nesting.is_inside(events, operators[part], thread, called)
        left = left & ~chosen[part]
    for part, spans in times.items():
        chosen[part] = left & contains(spans, called)
        left = left & ~chosen[part]
    chosen["other"] = left
    return {part: length(merge(device.events.spans_of(mask))) for part, mask in chosen.items()}
