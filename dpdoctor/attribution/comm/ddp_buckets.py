"""DDP's gradient buckets: in which order they are reduced, when they are ready, and what outlasts the backward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.comm.backward_passes import BackwardPasses, backward_passes
from dpdoctor.attribution.comm.callers import host_rows
from dpdoctor.attribution.comm.collectives import Collectives
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.host_steps import HostSteps
from dpdoctor.attribution.nesting import is_inside
from dpdoctor.digest import HOST, Bucket
from dpdoctor.trace.columns import UNKNOWN
from dpdoctor.trace.model import Trace

# One bucket for each parameter of a large model: more than anyone reads.
MAX_BUCKETS = 1_000
# DDP reduces a bucket in the hook of the gradient that fills it; SyncBatchNorm reduces in nodes of its own.
_GRADIENT = r"^autograd::engine::evaluate_function: torch::autograd::AccumulateGrad$"


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
