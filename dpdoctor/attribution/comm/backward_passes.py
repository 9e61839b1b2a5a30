"""When the backward passes of the training computed on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.comm.callers import host_rows
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.host_steps import HostSteps
from dpdoctor.attribution.intervals import contains
from dpdoctor.attribution.nesting import is_inside
from dpdoctor.attribution.parts import Part
from dpdoctor.attribution.whole_steps import whole_steps
from dpdoctor.trace.model import Trace

_FORWARD = r"^DistributedDataParallel\.forward$"
_NODE = r"^autograd::engine::evaluate_function: "
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardPasses:
    """What p backward passes computed on one device.

    Attributes:
        forward_ns: int64[p], sorted, on the host: a pass is all that is called from one to the next.
        is_whole: bool[p]: the pass is in a whole step and computed something.
        begin_ns, end_ns: int64[p], on the device, of its compute.
        called_ns, done_ns: int64[m]: of compute in the order of its calls, when it was called, and when all of it up to
            there was done.
    """

    forward_ns: NDArray[np.int64]
    is_whole: NDArray[np.bool_]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    called_ns: NDArray[np.int64]
    done_ns: NDArray[np.int64]

    def of(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the pass in which something was called at each time; -1: in no whole one."""
        number = np.searchsorted(self.forward_ns, times, side="right") - 1
        return np.where(np.append(self.is_whole, False)[number], number, -1)

    def done_before(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return when all was done that had been called before each time."""
        return np.concatenate(([_INT64.min], self.done_ns))[np.searchsorted(self.called_ns, times)]


def backward_passes(
    trace: Trace, steps: HostSteps, observed: Sequence[DeviceEvents], device: DeviceEvents
) -> BackwardPasses:
    """Return the passes on one of the observed devices: from one forward of DDP to the next, else those of the steps.

    The compute of a backward is what the nodes of autograd launch; DDP's copies out of its buckets come after them.
    """
    forward = np.sort(trace.events.begin_ns[host_rows(trace, _FORWARD)])
    if not len(forward):
        forward = steps.spans[:, 0]
    nodes = host_rows(trace, _NODE)
    is_backward = (device.part == Part.COMPUTE) & is_inside(
        trace.events, nodes, device.call_thread, device.call_begin_ns
    )
    at = np.flatnonzero(is_backward)
    at = at[np.argsort(device.call_begin_ns[at], kind="stable")]
    called = device.call_begin_ns[at]
    number = np.searchsorted(forward, called, side="right") - 1
    begin, end = np.full(len(forward), _INT64.max), np.full(len(forward), _INT64.min)
    np.minimum.at(begin, number[number >= 0], device.events.begin_ns[at[number >= 0]])
    np.maximum.at(end, number[number >= 0], device.events.end_ns[at[number >= 0]])
    return BackwardPasses(
        forward_ns=forward,
        is_whole=contains(whole_steps(steps, observed), forward) & (begin < end),
        begin_ns=begin,
        end_ns=end,
        called_ns=called,
        done_ns=np.maximum.accumulate(device.events.end_ns[at]),
    )
