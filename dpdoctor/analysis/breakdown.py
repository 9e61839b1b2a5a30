"""Where the time of a traced step went, from the digests of all ranks of a mode.

A share is the total of a part over the total of the time, over the steps that count (see traces); its interval is over
the steps. Times are added up over what may be added: the steps that count, or else the whole trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

import msgspec
from msgspec.structs import replace

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.launches import NS
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.summary import TraceBreakdown
from dpdoctor.analysis.base.traces import MAY_HOLD, NO_STEPS, CommonSteps, Traces
from dpdoctor.digest import IDLE_CAUSES, Breakdown, DeviceDigest, DeviceStep, Replay

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


def share(common: CommonSteps, part: Callable[[Sequence[DeviceStep]], float]) -> Figure:
    """Return `part` (ns, of the same step on every device) over the steps' mean length, of these steps."""
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
    return replace(figure, reason=f"{MAY_HOLD}{f'; {figure.reason}' if figure.reason else ''}")


def _noted(figure: Figure, common: CommonSteps) -> Figure:
    """Return a figure with what it leaves out."""
    return replace(figure, reason=common.left_out) if common.left_out else figure


def _part(key: str) -> Callable[[Spent], int]:
    name, _, cause = key.partition(".")
    # A part is missing only where its figure is unknown, too.
    return lambda one: one.idle_by.get(cause, 0) if cause else one.parts_ns.get(name, 0)


def _length(at_once: Sequence[DeviceStep]) -> float:
    return fmean(step.breakdown.total_ns for step in at_once)


PARTS = ("compute", "exposed_comm", "h2d", "copy", "idle")


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one or more devices, by its five parts.

    Attributes:
        parts_ns: by PARTS; they add up to total_ns. Where communication is unknown exposed_comm is missing, and compute
            may hold it.
        comm_ns: None: unknown.
        idle_by, phases_ns: as in DeviceStep.
        num_steps: over all devices; 0: these are whole traces.
    """

    parts_ns: Mapping[str, int]
    comm_ns: int | None
    idle_by: Mapping[str, int]
    phases_ns: Mapping[str, int]
    num_steps: int

    @property
    def total_ns(self) -> int:
        """The length of it all."""
        return sum(self.parts_ns.values())

    @property
    def overlap_ratio(self) -> float | None:
        """Communication beside compute, of all communication; None without any."""
        return 1 - self.parts_ns["exposed_comm"] / self.comm_ns if self.comm_ns else None

    @property
    def knows_communication(self) -> bool:
        """Whether it is known what all of the devices communicated."""
        return self.comm_ns is not None

    def without_communication(self) -> Spent:
        """Return the same time where communication is unknown: see Breakdown."""
        others = {part: time_ns for part, time_ns in self.parts_ns.items() if part != "exposed_comm"}
        others["compute"] += self.parts_ns.get("exposed_comm", 0)
        return replace(self, parts_ns=others, comm_ns=None)

    def ratio(self, part: str) -> float:
        """Return the share of one of the parts in `parts_ns`."""
        return self.parts_ns[part] / self.total_ns


def spent(devices: Sequence[DeviceDigest], common: CommonSteps) -> Spent:
    """Return where the time of these devices went: in their steps that count if there are any, else in all of it.

    Raises:
        ValueError: nothing took any time.
    """
    steps = [step for device in devices for step in common.of(device)]
    found = of_steps(steps) if steps else _of_whole(devices)
    if not found.total_ns:
        raise ValueError("nothing took any time on these devices")
    return found


def together(traces: Traces) -> Spent:
    """Return where the time of all devices of these traces went; communication is known of all of them or unknown.

    Raises:
        ValueError: nothing took any time.
    """
    found = spent([device for digest in traces.digests for device in digest.devices], traces.common)
    return found if traces.why_unknown is None else found.without_communication()


def of_steps(steps: Sequence[DeviceStep]) -> Spent:
    """Return where the time of these steps went, of any devices."""
    parts_ns, comm_ns = _added([step.breakdown for step in steps])
    return Spent(
        parts_ns=parts_ns,
        comm_ns=comm_ns,
        idle_by=_sum(step.idle_by for step in steps),
        phases_ns=_sum(step.phases_ns for step in steps),
        num_steps=len(steps),
    )


def _of_whole(devices: Sequence[DeviceDigest]) -> Spent:
    parts_ns, comm_ns = _added([device.whole for device in devices])
    idle_by = _sum(device.idle_by for device in devices)
    return Spent(parts_ns=parts_ns, comm_ns=comm_ns, idle_by=idle_by, phases_ns={}, num_steps=0)


def _added(breakdowns: Sequence[Breakdown]) -> tuple[dict[str, int], int | None]:
    """Return the parts and all communication, which is known of all of them or unknown."""
    comm_ns = [breakdown.comm_ns for breakdown in breakdowns if breakdown.comm_ns is not None]
    if len(comm_ns) == len(breakdowns):
        return _sum(map(parts, breakdowns)), sum(comm_ns)
    return _sum(parts(breakdown.without_communication()) for breakdown in breakdowns), None


def parts(breakdown: Breakdown) -> dict[str, int]:
    """Return the five parts of a breakdown by name; exposed_comm is missing where it is unknown."""
    found = {
        "compute": breakdown.compute_ns,
        "exposed_comm": breakdown.exposed_comm_ns,
        "h2d": breakdown.h2d_ns,
        "copy": breakdown.copy_ns,
        "idle": breakdown.idle_ns,
    }
    return {part: time_ns for part, time_ns in found.items() if time_ns is not None}


def _sum(times: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for time in times:
        total.update(time)
    return dict(total)


# Causes of idle time in which the host is busy with launching, or with the Python between launches.
LAUNCHING = ("dispatch", "python", "optimizer", "launch_latency")
# The host is in the loop's own code, or in a span that the script named there.
OWN_CODE = ("script", "annotation")


def idle_share(traces: Traces, *causes: str) -> Figure:
    """Return the share of a step in which a device idles for one of these causes; mean over devices."""
    return part_share(traces, *map(CAUSE.format, causes))


def most_idle_share(traces: Traces, cause: str) -> Figure:
    """Return the same for one cause, in each step of the device that idles longest for it."""
    return share(traces.common, lambda at_once: max(step.idle_by.get(cause, 0) for step in at_once))


def most_receiving_share(traces: Traces) -> Figure:
    """Return the share of a step in which a device only receives, in each step of the one that does so longest."""
    return share(traces.common, lambda at_once: max(step.breakdown.h2d_ns for step in at_once))


def untraced_idle(traces: Traces, step_s: float | None, *causes: str) -> Figure:
    """Return the share of a step in which a device idles for one of these causes, as it is without a profiler; mean
    over devices.

    A profiler slows the host and hardly the device: where the untraced step is known, what it leaves beside the
    device's work is the idle time, and the trace says only what part of it is of these causes.
    """
    return _untraced_idle(traces.common, traces.why_unknown, step_s, causes)


def most_untraced_idle(traces: Traces, step_s: float | None, *causes: str) -> Figure:
    """Return the same of the device that idles longest for these causes."""
    common, unknown = traces.common, traces.why_unknown
    each = [replace(common, steps=tuple(zip(steps, strict=True))) for steps in zip(*common.steps, strict=True)]
    found = [_untraced_idle(of_device, unknown, step_s, causes) for of_device in each or [common]]
    return max(found, key=lambda share: share.value or 0.0)


def _untraced_idle(common: CommonSteps, unknown: str | None, step_s: float | None, causes: Sequence[str]) -> Figure:
    traced, idle = _share(common, unknown, *map(CAUSE.format, causes)), _share(common, unknown, "idle")
    if not step_s or not idle.value or traced.value is None:
        return traced
    untraced = max(0.0, 1 - _busy_s(common) / step_s)
    return stats.scaled(traced, min(1.0, untraced / idle.value))


def _busy_s(common: CommonSteps) -> float:
    def busy(step: DeviceStep) -> int:
        return step.breakdown.total_ns - step.breakdown.idle_ns

    return fmean(busy(step) for steps in common.steps for step in steps) * NS


def waiting_shares(traces: Traces, step_s: float | None) -> list[Figure]:
    """Return the share of a step by which it would be shorter if a rank did not wait where it can do without.

    Of each rank of which that was replayed. As it is without a profiler, where the untraced step is known: the host is
    taken to be so much faster that the replayed step lasts as long.
    """
    return [_without_waiting(digest.replay, step_s) for digest in traces.digests if digest.replay is not None]


def _without_waiting(of: Replay, step_s: float | None) -> Figure:
    points = list(zip(of.step_ns, of.without_ns, strict=True))
    step, without = points[0] if step_s is None else _at(points, step_s / NS)
    return Figure(value=max(0.0, 1 - without / step), n=of.num_steps, unit="ratio")


def _at(points: Sequence[tuple[int, int]], step_ns: float) -> tuple[float, float]:
    """Return the point with this step, between two that are known; with none as long or as short, the nearest."""
    for (longer, before), (shorter, after) in pairwise(points):
        if longer >= step_ns > shorter:
            way = (longer - step_ns) / (longer - shorter)
            return step_ns, before + way * (after - before)
    return points[0] if step_ns >= points[0][0] else points[-1]
