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


def exposed_share(digests: Sequence[Digest]) -> Figure:
    """Return the share of a traced step that communicates while nothing computes, on the rank where it is least.

    That rank is the one the others wait for: what it loses is what a step loses, the rest is the others' waiting for it
    and does not go away with the communication. (Rank r takes w_r(s) before it meets the others in step s. With
    communication a step takes E[max_r w_r] + transfer, without max_r E[w_r]; the difference is what the rank with the
    largest E[w_r] spends in communication.)
    """
    figures = [stats.ratio_of_totals(steps, "ratio") for digest in digests if (steps := _exposed(digest))]
    least = min(figures, key=lambda figure: figure.value or 0.0, default=None)
    return least or stats.unknown("ratio", NO_STEPS if digests else NO_TRACE)


def _idle(cause: str) -> Callable[[DeviceStep], int]:
    return lambda step: step.idle_by.get(cause, 0)


def _exposed(digest: Digest) -> list[tuple[float, float]]:
    budgets = [step.budget for device in digest.devices for step in device.steps]
    return [(budget.exposed_comm_ns, budget.total_ns) for budget in budgets]
