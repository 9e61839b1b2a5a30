"""The figures of a traced step, from the digests of all ranks of a mode: over the steps that count, see common_steps.

A share is the total of a part over the total of the time; its interval is over the steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from statistics import fmean

from dpdoctor.analysis import stats
from dpdoctor.analysis.common_steps import NO_STEPS, CommonSteps
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.spent import PARTS, Spent, of_steps, together
from dpdoctor.analysis.summary import TraceBreakdown
from dpdoctor.analysis.traces import Traces
from dpdoctor.analysis.unknown_communication import MAY_HOLD
from dpdoctor.digest import IDLE_CAUSES, DeviceStep

NS = 1e-9
OF_ALL = "{}: the share is of all that was traced"
CAUSE = "idle.{}"


def trace_breakdown(traces: Traces) -> TraceBreakdown | None:
    """Return the mean breakdown per traced step and device; None: no rank left a trace with a whole step.

    The profiler slows steps, the host's part most: shares of these seconds are to be trusted, not the seconds.
    """
    if not any(device.steps for digest in traces.digests for device in digest.devices):
        return None
    common, unknown = traces.common, traces.why_unknown
    steps = _each(common, unknown)

    def mean(part: Callable[[Spent], int]) -> Figure:
        values = [part(one) / one.num_steps * NS for one in steps]
        return _noted(stats.mean_interval(values, "s", reason=common.left_out or NO_STEPS), common)

    return TraceBreakdown(
        step=mean(lambda one: one.total_ns),
        comm=_told(["comm"], mean(lambda one: one.comm_ns or 0), unknown),
        idle_by={cause: mean(_part(CAUSE.format(cause))) for cause in IDLE_CAUSES},
        **{name: _told([name], mean(_part(name)), unknown) for name in PARTS},
    )


def breakdown_shares(traces: Traces) -> dict[str, Figure]:
    """Return the shares of the traced time of all devices: PARTS, which add up to 1, and `idle.<cause>`.

    Without steps that count of all that was traced, and without an interval; `reason` then says so. Empty: nothing was
    traced. Where communication is unknown its share is, and compute may hold it.
    """
    common, unknown = traces.common, traces.why_unknown
    keys = (*PARTS, *map(CAUSE.format, IDLE_CAUSES))
    if common.steps:
        return {key: _share(common, unknown, key) for key in keys}
    if not any(device.whole.total_ns for digest in traces.digests for device in digest.devices):
        return {}
    whole, reason = together(traces), OF_ALL.format(common.left_out)
    found = {key: Figure(value=_part(key)(whole) / whole.total_ns, n=1, unit="ratio", reason=reason) for key in keys}
    return {key: _told([key], figure, unknown) for key, figure in found.items()}


def part_share(traces: Traces, *keys: str) -> Figure:
    """Return the share that some of the `breakdown_shares` have together, of the steps that count; else unknown."""
    return _share(traces.common, traces.why_unknown, *keys)


def share(traces: Traces, part: Callable[[Sequence[DeviceStep]], float]) -> Figure:
    """Return `part` (ns, of the same step on every device) over the steps' mean length, of the steps that count."""
    common = traces.common
    parts = [(part(at_once), _length(at_once)) for at_once in common.steps]
    return _noted(stats.ratio_of_totals(parts, "ratio", reason=common.left_out), common)


def step_s(traces: Traces) -> float:
    """Return the mean seconds of the steps that count, of which there is one at least."""
    return fmean(map(_length, traces.common.steps)) * NS


def _share(common: CommonSteps, unknown: str | None, *keys: str) -> Figure:
    parts = [(sum(_part(key)(one) for key in keys), one.total_ns) for one in _each(common, unknown)]
    return _told(keys, _noted(stats.ratio_of_totals(parts, "ratio", reason=common.left_out), common), unknown)


def _each(common: CommonSteps, unknown: str | None) -> list[Spent]:
    """Return where each step that counts went, of all devices; communication is known of all traces or unknown."""
    steps = [of_steps(at_once) for at_once in common.steps]
    return steps if unknown is None else [one.without_communication() for one in steps]


def _told(keys: Collection[str], figure: Figure, unknown: str | None) -> Figure:
    """Return the figure of these parts; `unknown`: why communication is, and compute may hold it."""
    if unknown is None:
        return figure
    if not {"comm", "exposed_comm"}.isdisjoint(keys):
        return stats.unknown(figure.unit, unknown)
    if "compute" not in keys or figure.value is None:
        return figure
    return dataclasses.replace(figure, reason=f"{MAY_HOLD}{f'; {figure.reason}' if figure.reason else ''}")


def _noted(figure: Figure, common: CommonSteps) -> Figure:
    """Return a figure with what it leaves out."""
    return dataclasses.replace(figure, reason=common.left_out) if common.left_out else figure


def _part(key: str) -> Callable[[Spent], int]:
    name, _, cause = key.partition(".")
    # A part is missing only where its figure is unknown, too.
    return lambda one: one.idle_by.get(cause, 0) if cause else one.parts_ns.get(name, 0)


def _length(at_once: Sequence[DeviceStep]) -> float:
    return fmean(step.breakdown.total_ns for step in at_once)
