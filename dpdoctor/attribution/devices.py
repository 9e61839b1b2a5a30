"""What a trace says of each device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdoctor.attribution.budget import occupancy, whole_span
from dpdoctor.attribution.comm.handling import handling
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.device_memory import peak_bytes
from dpdoctor.attribution.device_steps import step_windows
from dpdoctor.attribution.host_activity import Activity
from dpdoctor.attribution.host_phases import host_phases
from dpdoctor.attribution.host_steps import HostSteps
from dpdoctor.attribution.idle import idle_by_cause, within
from dpdoctor.attribution.intervals import Spans, contains, intersect, subtract
from dpdoctor.attribution.launch_delay import launch_delay
from dpdoctor.attribution.phases import busy_by_phase
from dpdoctor.digest import HOST, DeviceDigest, DeviceStep
from dpdoctor.trace.columns import Kind
from dpdoctor.trace.model import Trace

# Of all devices together: about 0.4 MB in a digest, 0.8 MB where the host itself computes.
MAX_STEPS = 1_000


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
        used.budgets(kept),
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
        whole=used.budgets(span)[0],
        idle_by=within(causes, span)[0],
        steps=tuple(
            DeviceStep(
                step=number,
                begin_ns=begin,
                end_ns=end,
                budget=budget,
                idle_by=idle,
                phases_ns=busy_by,
                host_phases_ns=host_phases_ns,
                handling_by=handling_by,
            )
            for number, (begin, end), budget, idle, busy_by, host_phases_ns, handling_by in per_step
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
