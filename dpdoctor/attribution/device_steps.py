"""The steps as a device saw them: the host runs ahead, so they are not when the host's were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.host_steps import HostSteps
from dpdoctor.attribution.intervals import Spans
from dpdoctor.digest import HOST
from dpdoctor.trace.columns import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindows:
    """The k whole steps on one device.

    Attributes:
        numbers: int64[k], as HostSteps has them.
        spans: int64[k, 2], disjoint; they touch where the host's steps do.
    """

    numbers: NDArray[np.int64]
    spans: Spans


def step_windows(steps: HostSteps, device: DeviceEvents) -> StepWindows:
    """Return from when to when each step was on a device; on the HOST, the host's own steps.

    A step begins when the last kernel launched before it ends, and ends when the last one launched in it does; a step
    without a kernel of its own is none. The first, which the start of the profiler slows, and the last, whose tail may
    be cut, are left out where a step remains.
    """
    spans = steps.spans if device.index == HOST else _launched_within(steps.spans, device)
    is_step = spans[:, 0] < spans[:, 1]
    numbers, spans = steps.numbers[is_step], spans[is_step]
    kept = slice(1, -1) if len(spans) > 2 else slice(len(spans) - 1, None) if len(spans) else slice(0)
    return StepWindows(numbers=numbers[kept], spans=spans[kept])


def _launched_within(host: Spans, device: DeviceEvents) -> Spans:
    kernels = np.flatnonzero(device.events.kind == Kind.KERNEL)
    order = kernels[np.argsort(device.call_begin_ns[kernels], kind="stable")]
    launched = device.call_begin_ns[order]
    end = np.maximum.accumulate(device.events.end_ns[order])
    num_before = np.searchsorted(launched, host)  # int64[k, 2]
    edges = np.concatenate(([np.iinfo(np.int64).min], end))[num_before]
    edges[:, 0] = np.where(num_before[:, 0] > 0, edges[:, 0], host[:, 0])
    return edges


def whole_steps(steps: HostSteps, observed: Sequence[DeviceEvents]) -> Spans:
    """Return int64[k, 2]: when the host ran the steps that are whole on some device, as `step_windows` judges."""
    numbers = [step_windows(steps, device).numbers for device in observed]
    return steps.spans[np.isin(steps.numbers, np.concatenate([np.empty(0, np.int64), *numbers]))]
