"""Which kernels may be the communication of a trace in which none is known to be: to be named, never to be counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.comm.callers import host_rows
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.intervals import intersect, length, merge
from dpdoctor.attribution.nesting import is_inside
from dpdoctor.digest import MOST_SUSPECTS, kernel_words
from dpdoctor.trace.columns import Kind
from dpdoctor.trace.model import Trace

# What has less of the time of all that might be communication is not worth naming.
LEAST_SHARE = 0.01
# What runs beside other work only now and then does so by chance.
ALWAYS = 0.99
_TORCHS_OWN = r"\bat::native::"
_OPERATORS = r"^aten::"


def suspects(trace: Trace, devices: Sequence[DeviceEvents]) -> tuple[str, ...]:
    """Return in words the largest kernels that no operator of torch launched, those on streams of their own first.

    That a stream runs only beside others is said, and proves nothing: computing may be on a side stream, too.
    """
    found: Counter[tuple[bool, bool, int]] = Counter()
    for device in devices:
        aside, beside = _side_streams(device)
        rows = np.flatnonzero((device.events.kind == Kind.KERNEL) & ~_of_torch(trace, device))
        events = device.events[rows]
        columns = (events.name.tolist(), events.stream.tolist(), events.duration_ns.tolist())
        for name, stream, ns in zip(*columns, strict=True):
            found[stream in aside, stream in beside, name] += ns
    least = LEAST_SHARE * sum(found.values())
    largest = sorted((item for item in found.items() if item[1] > least), key=lambda item: (not item[0][0], -item[1]))
    return tuple(
        f"{kernel_words(trace.names[name], ns)}{' on a stream that runs only beside others' if is_beside else ''}"
        for (_, is_beside, name), ns in largest[:MOST_SUSPECTS]
    )


def _of_torch(trace: Trace, device: DeviceEvents) -> NDArray[np.bool_]:
    """Return bool[n]: which events an operator of torch launched, or are named like its kernels."""
    launched = is_inside(trace.events, host_rows(trace, _OPERATORS), device.call_thread, device.call_begin_ns)
    return launched | trace.named(_TORCHS_OWN)[device.events.name]


def _side_streams(device: DeviceEvents) -> tuple[set[int], set[int]]:
    """Return the streams besides the busiest, and those of them on which nothing ever runs alone."""
    events = device.events
    streams = np.unique(events.stream[events.kind == Kind.KERNEL]).tolist()
    times = {stream: merge(events.spans[events.stream == stream]) for stream in streams}
    busiest = max(times, key=lambda stream: length(times[stream]), default=None)
    aside = {stream for stream in times if stream != busiest}
    return aside, {stream for stream in aside if _is_beside(stream, times)}


def _is_beside(stream: int, times: dict[int, NDArray[np.int64]]) -> bool:
    others = merge(*(spans for other, spans in times.items() if other != stream))
    return length(intersect(times[stream], others)) >= ALWAYS * length(times[stream])
