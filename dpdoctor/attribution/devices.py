"""What a trace says of each device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.breakdown import occupancy, whole_span
from dpdoctor.attribution.comm_host_overhead import handling
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.device_steps import step_windows
from dpdoctor.attribution.host_activity import Activity
from dpdoctor.attribution.host_steps import HostSteps
from dpdoctor.attribution.idle import idle_by_cause, within
from dpdoctor.attribution.intervals import Spans, contains, intersect, subtract
from dpdoctor.attribution.phases import busy_by_phase, host_phases
from dpdoctor.digest import HOST, DeviceDigest, DeviceStep, Quantiles
from dpdoctor.trace.columns import UNKNOWN, Kind
from dpdoctor.trace.model import Trace

_GRAPH_LAUNCH = r"GraphLaunch"
# Of all devices together: about 0.4 MB in a digest, 0.8 MB where the host itself computes.
MAX_STEPS = 1_000


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


def devices(
    trace: Trace, steps: HostSteps, observed: Sequence[DeviceEvents], host: dict[int, Activity]
) -> tuple[DeviceDigest, ...]:
    """Return the digest of each device, of what was found by `host_steps`, `device_events` and `activities`."""
    most = MAX_STEPS // max(1, len(observed))
    return tuple(_device(trace, steps, device, host, most) for device in observed)


def _device(trace: Trace, steps: HostSteps, device: DeviceEvents, host: dict[int, Activity], most: int) -> DeviceDigest:
    used, span, windows = occupancy(device), whole_span(device), step_windows(steps, device)
    causes = idle_by_cause(used.idle(np.concatenate((span, windows.spans))), device, host, steps.thread)
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
    is_launch = (device.events.kind == Kind.KERNEL) | (device.events.kind == Kind.MEMSET)
    return int(np.count_nonzero(contains(windows, device.events.begin_ns[is_launch])))


def _name(trace: Trace, index: int) -> str:
    if index == HOST:
        return "CPU"
    return trace.devices[index] if 0 <= index < len(trace.devices) else ""
