"""How long a device idles, by what the host did meanwhile."""

from __future__ import annotations

from statistics import fmean

from dpdoctor.analysis import stats
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.trace_breakdown import CAUSE, part_share
from dpdoctor.analysis.traces import Traces
from dpdoctor.analysis.windows import NS
from dpdoctor.digest import DeviceStep

# Causes of idle time in which the host is busy with launching, or with the Python between launches.
LAUNCHING = ("dispatch", "python", "optimizer", "launch_latency")
# The host is in the loop's own code, or in a span that the script named there.
OWN_CODE = ("script", "annotation")


def idle_share(traces: Traces, *causes: str) -> Figure:
    """Return the share of a step in which a device idles for one of these causes; mean over devices."""
    return part_share(traces, *map(CAUSE.format, causes))


def untraced_idle(traces: Traces, step_s: float | None, *causes: str) -> Figure:
    """Return the share of a step in which the device idles for one of these causes, as it is without a profiler.

    A profiler slows the host and hardly the device: where the untraced step is known, what it leaves beside the
    device's work is the idle time, and the trace says only what part of it is of these causes.
    """
    traced, idle = idle_share(traces, *causes), part_share(traces, "idle")
    if not step_s or not idle.value or traced.value is None:
        return traced
    untraced = max(0.0, 1 - _busy_s(traces) / step_s)
    return stats.scaled(traced, min(1.0, untraced / idle.value))


def _busy_s(traces: Traces) -> float:
    def busy(step: DeviceStep) -> int:
        return step.breakdown.total_ns - step.breakdown.idle_ns

    return fmean(busy(step) for steps in traces.common.steps for step in steps) * NS
