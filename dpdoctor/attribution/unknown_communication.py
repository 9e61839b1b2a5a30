"""Whether a trace tells what its rank communicates and, where it does not, which kernels may be communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpdoctor import units
from dpdoctor.attribution import marks
from dpdoctor.attribution.device_events import DeviceEvents, Part, named_communication
from dpdoctor.attribution.host_events import host_rows, is_inside
from dpdoctor.attribution.intervals import intersect, length, merge
from dpdoctor.digest import HOST, MOST_SUSPECTS, NAME_THEM, kernel_words, nothing_known
from dpdoctor.trace.model import UNKNOWN, Kind, Trace

# What has less of the time of all that might be communication is not worth naming.
LEAST_SHARE = 0.01
# What runs beside other work only now and then does so by chance.
ALWAYS = 0.99
_TORCHS_OWN = r"\bat::native::"
_OPERATORS = r"^aten::"
_OF_SEVERAL = (marks.COMM_CALL, marks.COMM_RECORD, marks.COMM_ANNOTATION, marks.HOST_COMM, marks.FSDP_HOOK)


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
    times = {stream: merge(events.spans_of(events.stream == stream)) for stream in streams}
    busiest = max(times, key=lambda stream: length(times[stream]), default=None)
    aside = {stream for stream in times if stream != busiest}
    return aside, {stream for stream in aside if _is_beside(stream, times)}


def _is_beside(stream: int, times: dict[int, NDArray[np.int64]]) -> bool:
    others = merge(*(spans for other, spans in times.items() if other != stream))
    return length(intersect(times[stream], others)) >= ALWAYS * length(times[stream])


def why_unknown(trace: Trace, devices: Sequence[DeviceEvents], comm_kernels: str | None) -> str | None:
    """Return why it is unknown what this rank communicates, in a clause; None: it is known, or the rank is alone.

    `devices` are those of `device_events` with the same `comm_kernels`.
    """
    if not devices or not _is_one_of_several(trace):
        return None
    if not any((device.part == Part.COMM).any() for device in devices):
        return _nothing(trace, devices, comm_kernels)
    number = sum(_num_doubtful(trace, device, comm_kernels) for device in devices)
    if not number:
        return None
    return (
        f"{units.count(number, 'kernel')} of unknown name and launch may communicate, as all others on the same stream "
        f"do by what launched or describes them; {NAME_THEM}"
    )


def _is_one_of_several(trace: Trace) -> bool:
    """Return whether other ranks belong to this one, as far as its trace tells: header, file or host."""
    if trace.world_size is not None:
        return trace.world_size > 1
    is_dp = len(host_rows(trace, marks.DP_FORWARD)) > 0
    signs = _OF_SEVERAL if is_dp else (*_OF_SEVERAL, marks.DDP_HANDLING)
    return (trace.rank or 0) > 0 or any(len(host_rows(trace, sign)) for sign in signs)


def _nothing(trace: Trace, devices: Sequence[DeviceEvents], comm_kernels: str | None) -> str:
    of = "several ranks" if trace.world_size is None else units.count(trace.world_size, "rank")
    if devices[0].index == HOST:
        return f"this is one of {of}, and the trace holds no span of a backend that communicates (gloo, mpi, ucc)"
    notes = []
    if comm_kernels is not None:
        notes.append(f"--comm-kernels {comm_kernels!r} matches none")
    if len(host_rows(trace, marks.HOST_COMM)):
        notes.append("a backend communicates on the host, of which the device shows nothing")
    return nothing_known(of, [*suspects(trace, devices)], notes)


def _num_doubtful(trace: Trace, device: DeviceEvents, comm_kernels: str | None) -> int:
    """Return how many kernels of which nothing is known are on streams of communication that no name tells."""
    events, is_comm = device.events, device.part == Part.COMM
    unnamed = is_comm & ~named_communication(trace, comm_kernels)[device.rows]
    if not unnamed.any():
        return 0
    streams = np.setdiff1d(events.stream[unnamed], events.stream[~is_comm & (device.call != UNKNOWN)])
    unseen = (events.kind == Kind.KERNEL) & ~is_comm & (device.call == UNKNOWN)
    return int(np.count_nonzero(unseen & np.isin(events.stream, streams)))
