"""What a trace says of each device: its time by step and by phase, memory, launch delay, a few steps as they ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution import marks
from dpdoctor.attribution.breakdown import Activity, Occupancy, idle_by_cause, whole_span, within
from dpdoctor.attribution.device_events import DeviceEvents, Part, collective_waits, hook_calls
from dpdoctor.attribution.host_events import host_rows, is_inside
from dpdoctor.attribution.intervals import Spans, clip, contains, exclusive, intersect, merge, subtract
from dpdoctor.attribution.steps import HostSteps, step_windows
from dpdoctor.digest import (
    BETWEEN_PHASES,
    HOST,
    HOST_PHASES,
    OPERATORS,
    PHASES,
    DeviceDigest,
    DeviceStep,
    Lane,
    Quantiles,
    TracedStep,
)
from dpdoctor.trace.model import UNKNOWN, Kind, Trace

# Of all devices together: about 0.4 MB in a digest, 0.8 MB where the host itself computes.
MAX_STEPS = 1_000


def devices(
    trace: Trace,
    steps: HostSteps,
    observed: Sequence[DeviceEvents],
    used: Mapping[int, Occupancy],
    idle: Mapping[int, Mapping[str, Spans]],
) -> tuple[DeviceDigest, ...]:
    """Return the digest of each device; `used` and `idle` (of `idle_causes`) are by device."""
    most = MAX_STEPS // max(1, len(observed))
    return tuple(
        _device(trace, steps, device, used[device.index], idle[device.index], most=most) for device in observed
    )


def _device(
    trace: Trace, steps: HostSteps, device: DeviceEvents, used: Occupancy, causes: Mapping[str, Spans], *, most: int
) -> DeviceDigest:
    span, windows = whole_span(device), step_windows(steps, device)
    kept = windows.spans[:most]
    phases = host_phases(trace, steps, device)
    handled = subtract(handling(trace, device, steps.thread), used.comm)
    per_step = zip(
        windows.numbers[:most].tolist(),
        kept.tolist(),
        used.breakdowns(kept),
        within(causes, kept),
        within(busy_by_phase(trace, steps, device), kept),
        within(phases, kept),
        within({phase: intersect(handled, spans) for phase, spans in phases.items()}, kept),
        strict=True,
    )
    allocated, reserved = peak_bytes(trace, device.index)
    return DeviceDigest(
        index=device.index,
        name=_name(trace, device.index),
        begin_ns=int(span[0, 0]),
        whole=used.breakdowns(span)[0],
        idle_by=within(causes, span)[0],
        steps=tuple(
            DeviceStep(
                step=number,
                begin_ns=begin,
                end_ns=end,
                breakdown=breakdown,
                idle_by=idle,
                phases_ns=busy_by,
                host_phases_ns=host_phases_ns,
                comm_host_ns=handling_by,
            )
            for number, (begin, end), breakdown, idle, busy_by, host_phases_ns, handling_by in per_step
        ),
        num_dropped=len(windows.spans) - len(kept),
        launch_delay=None if device.index == HOST else launch_delay(trace, device),
        launches=_num_launches(device, kept),
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
    )


def _num_launches(device: DeviceEvents, windows: Spans) -> int:
    """Return how many calls launched kernels and memsets in the windows; of a graph one launches all."""
    is_launch = (device.events.kind == Kind.KERNEL) | (device.events.kind == Kind.MEMSET)
    call = device.call[is_launch][contains(windows, device.events.begin_ns[is_launch])]
    is_known = call != UNKNOWN
    return len(np.unique(call[is_known])) + int(np.count_nonzero(~is_known))


def _name(trace: Trace, index: int) -> str:
    if index == HOST:
        return "CPU"
    return trace.devices[index] if 0 <= index < len(trace.devices) else ""


def idle_causes(
    device: DeviceEvents, used: Occupancy, steps: HostSteps, activities: Mapping[int, Activity]
) -> dict[str, Spans]:
    """Return when a device was idle by cause, over all of its events and its steps."""
    windows = np.concatenate((whole_span(device), step_windows(steps, device).spans))
    return idle_by_cause(used.idle(windows), device, activities, steps.thread)


def handling(trace: Trace, device: DeviceEvents, thread: int) -> Spans:
    """Return when any thread copied for DDP or the training thread waited for FSDP; of a GPU nothing: kernels do that.

    Collectives within it are included. What FSDP copies is not: it lays its shards out anew for every pass, whoever
    they come from.
    """
    if device.index != HOST:
        return merge()
    copies = trace.events.spans_of(host_rows(trace, marks.DDP_HANDLING))
    return merge(copies, collective_waits(trace, thread), hook_calls(trace, thread))


def host_phases(trace: Trace, steps: HostSteps, device: DeviceEvents) -> dict[str, Spans]:
    """Return `_marked_phases` where the host is what computes; nothing on a GPU."""
    return _marked_phases(trace, steps) if device.index == HOST else {}


def _marked_phases(trace: Trace, steps: HostSteps) -> dict[str, Spans]:
    """Return when the training thread was in each of HOST_PHASES, the rest of the steps being `other`.

    Of two that are nested it is in the one that comes first in HOST_PHASES: a closure's forward lies in the optimizer.
    What lies between two of them in one step may be of one of them, as BETWEEN_PHASES says.
    """
    events, annotations = trace.events, trace.rows(Kind.ANNOTATION)
    annotations = annotations[events.thread[annotations] == steps.thread]
    *marked, other = HOST_PHASES
    is_marked = [trace.named(f"{marks.PHASE}{phase}$")[events.name[annotations]] for phase in marked]
    sets = [merge(events.spans_of(annotations[rows])) for rows in is_marked]
    phases = dict(zip(marked, exclusive(sets), strict=True))
    between = _between(phases, steps)
    every = merge(*phases.values())
    phases = {name: merge(spans, subtract(between.get(name, merge()), every)) for name, spans in phases.items()}
    return {**phases, other: subtract(merge(steps.spans), merge(*phases.values()))}


def _between(phases: dict[str, Spans], steps: HostSteps) -> dict[str, Spans]:
    """Return what BETWEEN_PHASES gives to each phase, with what of others lies in it."""
    names = sorted({name for pair in BETWEEN_PHASES for name in pair})
    spans = np.concatenate([phases[name] for name in names])
    of = np.repeat(np.arange(len(names)), [len(phases[name]) for name in names])
    order = np.argsort(spans[:, 0], kind="stable")
    spans, of = spans[order], of[order]
    gaps = np.stack((spans[:-1, 1], spans[1:, 0]), axis=1)
    in_one_step = steps.of(gaps[:, 0]) == steps.of(gaps[:, 1])
    found: dict[str, Spans] = {}
    for (before, after), owner in BETWEEN_PHASES.items():
        is_pair = (of[:-1] == names.index(before)) & (of[1:] == names.index(after)) & in_one_step
        found[owner] = merge(found.get(owner, merge()), gaps[is_pair])
    return found


_FORWARD, _BACKWARD, _OPTIMIZER, _OTHER = range(len(PHASES))


def busy_by_phase(trace: Trace, steps: HostSteps, device: DeviceEvents) -> dict[str, Spans]:
    """Return when the device was busy for each of PHASES; they are disjoint, and add up to its busy time.

    Backward is what autograd launched, optimizer what an optimizer's step did. Forward is the rest that was launched in
    a step before the last of its backward, except copies to the device and what the loader or zero_grad launched.
    """
    phase = _phases(trace, steps, device)
    sets = [merge(device.events.spans_of(phase == number)) for number in range(len(PHASES))]
    return dict(zip(PHASES, exclusive(sets), strict=True))


def _phases(trace: Trace, steps: HostSteps, device: DeviceEvents) -> NDArray[np.int8]:
    """Return int8[n]: index into PHASES."""
    called, thread = device.call_begin_ns, device.call_thread
    is_backward = _launched_within(trace, device, marks.BACKWARD)
    # Threads of autograd run nothing else: what is launched between two nodes is backward as well (hooks).
    is_backward |= (thread != steps.thread) & np.isin(thread, np.unique(thread[is_backward]))
    step = steps.of(called)
    last_backward = np.full(len(steps.numbers) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last_backward, step[is_backward], called[is_backward])
    last_backward[last_backward == np.iinfo(np.int64).min] = np.iinfo(np.int64).max  # an evaluation is all forward
    is_forward = (step != -1) & (called < last_backward[step]) & (device.part != Part.H2D)
    phase = np.where(is_forward, _FORWARD, _OTHER).astype(np.int8)
    phase[_launched_within(trace, device, f"{marks.ZERO_GRAD}|{marks.LOADER}")] = _OTHER
    phase[is_backward] = _BACKWARD
    phase[_launched_within(trace, device, marks.OPTIMIZER_STEP)] = _OPTIMIZER
    return phase


def _launched_within(trace: Trace, device: DeviceEvents, pattern: str) -> NDArray[np.bool_]:
    """Return bool[n]: what was launched inside of a host span of such a name on the launching thread."""
    return is_inside(trace.events, host_rows(trace, pattern), device.call_thread, device.call_begin_ns)


def peak_bytes(trace: Trace, index: int) -> tuple[int | None, int | None]:
    """Return the most bytes (allocated, reserved) on a device; None where the trace does not say it.

    The HOST's are None: its allocator counts only what was allocated while recording, which is not what was in use.
    """
    if index == HOST:
        return None, None
    ours = trace.memory.device == index
    return _peak(trace.memory.allocated_bytes[ours]), _peak(trace.memory.reserved_bytes[ours])


def _peak(values: NDArray[np.int64]) -> int | None:
    known = values[values != UNKNOWN]
    return int(known.max()) if len(known) else None


_GRAPH_LAUNCH = r"GraphLaunch"


def launch_delay(trace: Trace, device: DeviceEvents) -> Quantiles | None:
    """Return, over kernels, the time from the end of the launching call to the begin; None: no launch is known.

    Microseconds: the device waits for the host. Milliseconds: the host runs ahead (HTA's "launch delay"). Kernels of a
    graph are left out, since all but the first wait for each other.
    """
    asked = (device.events.kind == Kind.KERNEL) & (device.call != UNKNOWN)
    asked[asked] = ~trace.named(_GRAPH_LAUNCH)[trace.events.name[device.call[asked]]]
    if not asked.any():
        return None
    delay = np.maximum(device.events.begin_ns[asked] - device.call_end_ns[asked], 0)
    p50, p90 = np.quantile(delay, (0.5, 0.9)).tolist()
    return Quantiles(n=len(delay), p50_ns=round(p50), p90_ns=round(p90), max_ns=int(delay.max()))


# Several, so that ranks that are compared are likely to have kept one of the same number.
MOST_STEPS = 5
# No screen shows finer gaps; a lane has at most so many spans.
FINEST = 600
_WHAT = {Part.COMPUTE: "compute", Part.COMM: "comm", Part.H2D: "h2d", Part.COPY: "copy"}


class _Track(msgspec.Struct, frozen=True, kw_only=True):
    """A lane over the whole trace, and by step where it is cut."""

    device: int
    what: str
    spans: Spans
    cut: dict[int, tuple[int, int]]


def traced_steps(trace: Trace, steps: HostSteps, observed: Sequence[DeviceEvents]) -> tuple[TracedStep, ...]:
    """Return the whole steps that are nearest to their median length, by number; empty where none is whole.

    A step's host lanes are cut at the host's begin and end of it, a device's lanes at the device's.
    """
    if not observed:
        return ()
    windows = step_windows(steps, observed[0])
    if not len(windows.numbers):
        return ()
    lasted = windows.spans[:, 1] - windows.spans[:, 0]
    nearest = np.argsort(np.abs(lasted - np.median(lasted)), kind="stable")[:MOST_STEPS]
    tracks = [
        *_host_tracks(trace, steps, observed[0].index),
        *(track for one in observed for track in _device_tracks(steps, one)),
    ]
    return tuple(_traced_step(number, tracks) for number in sorted(windows.numbers[nearest].tolist()))


def _host_tracks(trace: Trace, steps: HostSteps, first_device: int) -> Iterator[_Track]:
    """Yield what the training thread was at: the phases that the trace marks, else where it ran operators."""
    cut = dict(zip(steps.numbers.tolist(), map(tuple, steps.spans.tolist()), strict=True))
    *marked, other = _marked_phases(trace, steps).items()
    if any(len(spans) for _, spans in marked):
        for what, spans in (*marked, other):
            yield _Track(device=HOST, what=what, spans=spans, cut=cut)
    elif first_device != HOST:
        rows = trace.rows(Kind.CPU_OP, Kind.RUNTIME)
        rows = rows[(trace.events.thread[rows] == steps.thread) & ~trace.named(marks.OF_LOOP)[trace.events.name[rows]]]
        yield _Track(device=HOST, what=OPERATORS, spans=merge(trace.events.spans_of(rows)), cut=cut)


def _device_tracks(steps: HostSteps, device: DeviceEvents) -> Iterator[_Track]:
    windows = step_windows(steps, device)
    cut = dict(zip(windows.numbers.tolist(), map(tuple, windows.spans.tolist()), strict=True))
    for part, what in _WHAT.items():
        spans = merge(device.events.spans_of(device.part == part))
        if len(spans):
            yield _Track(device=device.index, what=what, spans=spans, cut=cut)


def _traced_step(number: int, tracks: Sequence[_Track]) -> TracedStep:
    ours = [(track, *track.cut[number]) for track in tracks if number in track.cut]
    begin, end = min(begin for _, begin, _ in ours), max(end for _, _, end in ours)
    finest = (end - begin) // FINEST
    cut = ((track, clip(track.spans, first, last)) for track, first, last in ours)
    return TracedStep(
        step=number,
        begin_ns=begin,
        duration_ns=end - begin,
        finest_ns=finest,
        lanes=tuple(
            Lane(
                device=track.device,
                what=track.what,
                spans_ns=tuple((_without_gaps(spans, finest) - begin).ravel().tolist()),
            )
            for track, spans in cut
            if len(spans)
        ),
    )


def _without_gaps(spans: Spans, finest_ns: int) -> Spans:
    """Return the spans, those joined between which there is less than `finest_ns`."""
    is_gap = spans[1:, 0] - spans[:-1, 1] >= max(1, finest_ns)
    first, last = np.concatenate(([True], is_gap)), np.concatenate((is_gap, [True]))
    return np.stack((spans[first, 0], spans[last, 1]), axis=1)
