"""The figures of a traced step, from the digests of all ranks of a mode: over the steps that count, see common_steps.

A share is the total of a part over the total of the time; its interval is over the steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from statistics import fmean

from dpdoctor.analysis import stats
from dpdoctor.analysis.common_steps import NO_STEPS, CommonSteps, common_steps
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.spent import PARTS, Spent, of_steps, spent
from dpdoctor.analysis.summary import TraceBudget
from dpdoctor.digest import IDLE_CAUSES, DeviceStep, Digest

NS = 1e-9
OF_ALL = "{}: the share is of all that was traced"
CAUSE = "idle.{}"


def trace_budget(digests: Sequence[Digest]) -> TraceBudget | None:
    """Return the mean budget per traced step and device; None: no rank left a trace with a whole step.

    The profiler slows steps, the host's part most: shares of these seconds are to be trusted, not the seconds.
    """
    if not any(device.steps for digest in digests for device in digest.devices):
        return None
    common = common_steps(digests)
    steps = [of_steps(at_once) for at_once in common.steps]

    def mean(part: Callable[[Spent], int]) -> Figure:
        values = [part(one) / one.num_steps * NS for one in steps]
        return _noted(stats.mean_interval(values, "s", reason=common.left_out or NO_STEPS), common)

    return TraceBudget(
        step=mean(lambda one: one.total_ns),
        comm=mean(lambda one: one.comm_ns),
        idle_by={cause: mean(_part(CAUSE.format(cause))) for cause in IDLE_CAUSES},
        **{name: mean(_part(name)) for name in PARTS},
    )


def budget_shares(digests: Sequence[Digest]) -> dict[str, Figure]:
    """Return the shares of the traced time of all devices: PARTS, which add up to 1, and `idle.<cause>`.

    Without steps that count of all that was traced, and without an interval; `reason` then says so. Empty: nothing was
    traced.
    """
    devices = [device for digest in digests for device in digest.devices if device.whole.total_ns]
    common, keys = common_steps(digests), (*PARTS, *map(CAUSE.format, IDLE_CAUSES))
    if common.steps:
        return {key: _share(common, key) for key in keys}
    if not devices:
        return {}
    whole, reason = spent(devices, common), OF_ALL.format(common.left_out)
    return {key: Figure(value=_part(key)(whole) / whole.total_ns, n=1, unit="ratio", reason=reason) for key in keys}


def part_share(digests: Sequence[Digest], *keys: str) -> Figure:
    """Return the share that some of the `budget_shares` have together, of the steps that count; else unknown."""
    return _share(common_steps(digests), *keys)


def share(digests: Sequence[Digest], part: Callable[[Sequence[DeviceStep]], float]) -> Figure:
    """Return `part` (ns, of the same step on every device) over the steps' mean length, of the steps that count."""
    common = common_steps(digests)
    parts = [(part(at_once), _length(at_once)) for at_once in common.steps]
    return _noted(stats.ratio_of_totals(parts, "ratio", reason=common.left_out), common)


def step_s(digests: Sequence[Digest]) -> float:
    """Return the mean seconds of the steps that count, of which there is one at least."""
    return fmean(map(_length, common_steps(digests).steps)) * NS


def _share(common: CommonSteps, *keys: str) -> Figure:
    steps = [of_steps(at_once) for at_once in common.steps]
    parts = [(sum(_part(key)(one) for key in keys), one.total_ns) for one in steps]
    return _noted(stats.ratio_of_totals(parts, "ratio", reason=common.left_out), common)


def _noted(figure: Figure, common: CommonSteps) -> Figure:
    """Return a figure with what it leaves out."""
    return dataclasses.replace(figure, reason=common.left_out) if common.left_out else figure


def _part(key: str) -> Callable[[Spent], int]:
    name, _, cause = key.partition(".")
    return lambda one: one.idle_by.get(cause, 0) if cause else one.parts_ns[name]


def _length(at_once: Sequence[DeviceStep]) -> float:
    return fmean(step.budget.total_ns for step in at_once)
