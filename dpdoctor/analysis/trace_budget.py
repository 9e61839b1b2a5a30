"""Where a step's time goes on the devices, from the digests of all ranks of a mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dpdoctor.analysis import stats
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.summary import TraceBudget
from dpdoctor.digest import IDLE_CAUSES, Budget, DeviceStep, Digest

NS = 1e-9
NO_STEPS = "the trace holds no whole step"
NO_TRACE = "no rank left a trace"
NOT_STEPS = "the trace holds no whole step: the share is of all that was traced"
PARTS = ("compute", "exposed_comm", "h2d", "copy", "idle")

# A stretch of time on one device, and its idle part by cause.
Stretch = tuple[Budget, Mapping[str, int]]


def trace_budget(digests: Sequence[Digest]) -> TraceBudget | None:
    """Return the mean budget per traced step and device; None: no rank left a trace.

    The profiler slows steps, the host's part most: shares of these seconds are to be trusted, not the seconds.
    """
    if not digests:
        return None
    devices = [device.steps for digest in digests for device in digest.devices if device.steps]
    if not devices:
        return None
    per_step = list(zip(*devices, strict=False))  # the steps that every device has

    def mean(part: Callable[[DeviceStep], int]) -> Figure:
        values = [float(np.mean([part(step) for step in steps])) * NS for steps in per_step]
        return stats.mean_interval(values, "s", reason=NO_STEPS)

    return TraceBudget(
        step=mean(lambda step: step.budget.total_ns),
        compute=mean(lambda step: step.budget.compute_ns),
        exposed_comm=mean(lambda step: step.budget.exposed_comm_ns),
        h2d=mean(lambda step: step.budget.h2d_ns),
        copy=mean(lambda step: step.budget.copy_ns),
        idle=mean(lambda step: step.budget.idle_ns),
        comm=mean(lambda step: step.budget.comm_ns),
        idle_by={cause: mean(_idle(cause)) for cause in IDLE_CAUSES},
    )


def budget_shares(digests: Sequence[Digest]) -> dict[str, Figure]:
    """Return the shares of the traced steps over all devices: PARTS, which add up to 1, and `idle.<cause>`.

    Totals over totals, step by step. Without whole steps of all that was traced, and without an interval; `reason` then
    says so. Empty: nothing was traced.
    """
    devices = [device for digest in digests for device in digest.devices if device.whole.total_ns]
    steps = [device.steps for device in devices if device.steps]
    stretches = [[(step.budget, step.idle_by) for step in at_once] for at_once in zip(*steps, strict=False)]
    if stretches:
        return _shares(stretches)
    whole = _shares([[(device.whole, device.idle_by) for device in devices]]) if devices else {}
    return {key: dataclasses.replace(figure, reason=NOT_STEPS) for key, figure in whole.items()}


def _shares(stretches: Sequence[Sequence[Stretch]]) -> dict[str, Figure]:
    """Return the shares over stretches of time, each of all devices."""

    def share(part: Callable[[Stretch], int]) -> Figure:
        totals = [(sum(map(part, one)), sum(budget.total_ns for budget, _ in one)) for one in stretches]
        return stats.ratio_of_totals(totals, "ratio")

    parts = {name: share(_part(name)) for name in PARTS}
    return {**parts, **{f"idle.{cause}": share(_cause(cause)) for cause in IDLE_CAUSES}}


def _part(name: str) -> Callable[[Stretch], int]:
    return lambda stretch: int(getattr(stretch[0], f"{name}_ns"))


def _cause(name: str) -> Callable[[Stretch], int]:
    return lambda stretch: stretch[1].get(name, 0)


def _idle(cause: str) -> Callable[[DeviceStep], int]:
    return lambda step: step.idle_by.get(cause, 0)
