"""Where a step's time goes on the devices, from the digests of all ranks of a mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dpdoctor.analysis import stats
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.summary import TraceBudget
from dpdoctor.digest import IDLE_CAUSES, DeviceStep, Digest

NS = 1e-9
NO_STEPS = "the trace holds no whole step"
NO_TRACE = "no rank left a trace"


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


def _idle(cause: str) -> Callable[[DeviceStep], int]:
    return lambda step: step.idle_by.get(cause, 0)
