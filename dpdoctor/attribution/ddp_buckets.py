"""DDP's gradient buckets: when each was ready, when it was reduced, and beside which backward pass."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.callers import host_rows
from dpdoctor.attribution.collectives import Collectives
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.intervals import contains
from dpdoctor.attribution.nesting import is_inside
from dpdoctor.attribution.parts import Part
from dpdoctor.attribution.steps import HostSteps, whole_steps
from dpdoctor.digest import HOST, Bucket
from dpdoctor.trace.model import UNKNOWN, Trace

_FORWARD = r"^DistributedDataParallel\.forward$"
_NODE = r"^autograd::engine::evaluate_function: "
_INT64 = np.iinfo(np.int64)
# One bucket for each parameter of a large model: more than anyone reads.
MAX_BUCKETS = 1_000
# DDP reduces a bucket in the hook of the gradient that fills it; SyncBatchNorm reduces in nodes of its own.
_GRADIENT = r"^autograd::engine::evaluate_function: torch::autograd::AccumulateGrad$"


class BackwardPasses(msgspec.Struct, frozen=True, kw_only=True):
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


def buckets(trace: Trace, steps: HostSteps, observed: Sequence[DeviceEvents], found: Collectives) -> tuple[Bucket, ...]:
    """Return the first MAX_BUCKETS buckets in the order of their calls; empty for traces without any.

    Medians over the backward passes of whole steps that have as many buckets as most have: DDP's first has one, later
    ones have more. On a device with several, of the one whose buckets come first.
    """
    calls = np.flatnonzero(_reduces_gradients(trace, found))
    device = next((device for device in observed if device.index in found.device[calls[:1]]), None)
    if device is None:
        return ()
    calls = calls[found.device[calls] == device.index]
    passes = backward_passes(trace, steps, observed, device)
    called = trace.events.begin_ns[found.caller[calls]]
    number = passes.of(called)
    order = np.lexsort((called, number))
    order = order[_is_usual(number[order])]
    if not len(order):
        return ()
    num_passes = len(np.unique(number[order]))
    order = order.reshape(num_passes, -1)[:, :MAX_BUCKETS]
    return _medians(found, calls[order], called[order], passes, number[order[:, 0]], on_host=device.index == HOST)


def _reduces_gradients(trace: Trace, found: Collectives) -> NDArray[np.bool_]:
    """Return bool[n]: which calls are all-reduces made while a gradient was accumulated."""
    events, caller = trace.events, found.caller
    is_reduce = np.array([name == "all_reduce" for name in found.operations], bool) & (caller != UNKNOWN)
    gradients = host_rows(trace, _GRADIENT)
    return np.asarray(is_reduce & is_inside(events, gradients, events.thread[caller], events.begin_ns[caller]))


def _is_usual(numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return bool[n]: which of these pass numbers occur as often as most passes that have any; not the number -1."""
    counts = np.bincount(numbers[numbers >= 0], minlength=1)
    usual = np.argmax(np.bincount(counts[counts > 0], minlength=1))
    return np.asarray((numbers >= 0) & (counts[numbers] == usual))


def _medians(
    found: Collectives,
    calls: NDArray[np.int64],
    called_ns: NDArray[np.int64],
    passes: BackwardPasses,
    numbers: NDArray[np.int64],
    *,
    on_host: bool,
) -> tuple[Bucket, ...]:
    """Return the buckets of calls[p, b], made at called_ns[p, b]; `numbers` are those of the p passes.

    A device begins to reduce when all is done that was launched before the call; a host, when it is called.
    """
    begin, end = found.begin_ns[calls], found.end_ns[calls]
    ready = called_ns if on_host else np.maximum(called_ns, passes.done_before(called_ns))
    from_begin = passes.begin_ns[numbers][:, None]
    tail = np.maximum(end - np.maximum(begin, passes.end_ns[numbers][:, None]), 0)
    times = np.stack((ready - from_begin, end - from_begin, found.exposed_ns[calls], tail))
    num_bytes = found.num_bytes[calls]
    is_known = (num_bytes[0] != UNKNOWN) & (num_bytes == num_bytes[0]).all(axis=0)
    return tuple(
        Bucket(
            order=order, num_bytes=size if known else None, ready_ns=ready, end_ns=end, exposed_ns=exposed, tail_ns=tail
        )
        for order, (size, known, (ready, end, exposed, tail)) in enumerate(
            zip(
                num_bytes[0].tolist(),
                is_known.tolist(),
                np.median(times, axis=1).astype(np.int64).T.tolist(),
                strict=True,
            )
        )
    )
