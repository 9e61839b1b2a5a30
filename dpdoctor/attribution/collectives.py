"""Every communication event of a rank: what it is of, its bandwidth by size, the columns that ranks are compared by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.breakdown import Activity, Occupancy, idle_by_cause, whole_span
from dpdoctor.attribution.device_events import DeviceEvents, Part
from dpdoctor.attribution.host_events import Callers, callers
from dpdoctor.attribution.intervals import Spans, lengths_within, merge
from dpdoctor.attribution.operations import (
    UNKNOWN_OPERATION,
    bus_factor,
    operation,
    operations_of,
    ranks_of,
    whole_bytes,
)
from dpdoctor.attribution.steps import StepWindows
from dpdoctor.digest import HOST, Calls, CollectiveSize, SmallCalls
from dpdoctor.trace.model import UNKNOWN, Collective, Trace


class Collectives(msgspec.Struct, frozen=True, kw_only=True):
    """The n communication events of a rank in the order of their begin, on all its devices; arrays are int64[n].

    Attributes:
        rows: index into Trace.events.
        device: DeviceEvents.index.
        caller: the host event that made it: the operator, else the annotation, else the launch; UNKNOWN: none is seen.
        begin_ns, end_ns: of the kernel, or of the span on the backend's thread.
        exposed_ns: while nothing computed on the same device; on a host, while its training thread ran no operator.
        operations: n names, as `operation` gives them.
        groups, dtypes: n names; empty: the trace does not say.
        group_size, num_bytes, seq: UNKNOWN where the trace does not say. Bytes are those of the whole tensor.
    """

    rows: NDArray[np.int64]
    device: NDArray[np.int64]
    caller: NDArray[np.int64]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    exposed_ns: NDArray[np.int64]
    operations: tuple[str, ...]
    groups: tuple[str, ...]
    dtypes: tuple[str, ...]
    group_size: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    seq: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)


def collectives(trace: Trace, devices: Sequence[DeviceEvents]) -> Collectives:
    """Return all communication events on these devices."""
    parts = [np.flatnonzero(device.part == Part.COMM) for device in devices]
    rows = _join([device.rows[at] for device, at in zip(devices, parts, strict=True)])
    order = np.argsort(trace.events.begin_ns[rows], kind="stable")
    rows = rows[order]
    launch = _join([device.call[at] for device, at in zip(devices, parts, strict=True)])[order]
    by = callers(trace, rows, launch)
    calls = descriptions(trace, rows, by)
    return Collectives(
        rows=rows,
        device=_join([np.full(len(at), device.index) for device, at in zip(devices, parts, strict=True)])[order],
        caller=by.outermost,
        begin_ns=trace.events.begin_ns[rows],
        end_ns=trace.events.end_ns[rows],
        exposed_ns=_join([_exposed(device, at) for device, at in zip(devices, parts, strict=True)])[order],
        operations=tuple(call.operation for call in calls),
        groups=tuple(call.group for call in calls),
        dtypes=tuple(call.dtype for call in calls),
        group_size=_column([call.group_size for call in calls]),
        num_bytes=_column([call.num_bytes for call in calls]),
        seq=_column([call.seq for call in calls]),
    )


def _exposed(device: DeviceEvents, at: NDArray[np.int64]) -> NDArray[np.int64]:
    events = device.events
    compute = merge(events.spans_of(device.part == Part.COMPUTE))
    return events.duration_ns[at] - lengths_within(compute, events.spans_of(at))


def _join(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *columns])


_ABSURD = 1 << 62


def _column(values: Sequence[int | None]) -> NDArray[np.int64]:
    """Damaged files hold any number: what is negative or absurdly large is not known."""
    return np.array([UNKNOWN if value is None or not 0 <= value < _ABSURD else value for value in values], np.int64)


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one communication event; None, and for group and dtype "": the trace does not say.

    Attributes:
        num_bytes: of the whole tensor.
    """

    operation: str
    group: str
    group_size: int | None
    num_bytes: int | None
    seq: int | None
    dtype: str = ""


def descriptions(trace: Trace, rows: NDArray[np.int64], by: Callers) -> tuple[Description, ...]:
    """Return what is known of each of these rows.

    The operation: metadata, else the operator, else the annotation, else the event's own name; NCCL of 2022 calls
    kernels of any operation SendRecv, RCCL calls them Generic. Sizes: metadata, else the shapes of inputs.
    """
    said = {c.row: c for c in trace.collectives}
    named = operations_of(trace, rows, by.operator, by.annotation)
    group_size = _size_of_all_groups(trace)
    found = []
    for row, record, operator, annotation in zip(
        rows.tolist(), by.record.tolist(), by.operator.tolist(), by.annotation.tolist(), strict=True
    ):
        metadata = next((c for c in (said.get(row), said.get(record)) if c is not None and c.name is not None), None)
        told = (named[operator], named[annotation], named[row])
        if metadata is None:
            inputs = said.get(row if annotation == UNKNOWN else annotation)
            found.append(_from_shapes(_first_known(told), inputs, said.get(operator), group_size))
        else:
            found.append(_from_metadata(_first_known((operation(str(metadata.name)), *told)), metadata, group_size))
    return tuple(found)


def _from_metadata(operation: str, said: Collective, default_size: int | None) -> Description:
    group_size = said.group_size or default_size
    return Description(
        operation=operation,
        group=said.group or "",
        group_size=group_size,
        num_bytes=whole_bytes(operation, said.in_bytes, said.out_bytes, group_size),
        seq=said.seq,
        dtype=(said.dtype or "").lower(),
    )


def _from_shapes(
    operation: str, inputs: Collective | None, operator: Collective | None, default_size: int | None
) -> Description:
    input_bytes = inputs.in_bytes if inputs else None
    group_size = ranks_of(operation, input_bytes, operator.in_bytes if operator else None) or default_size
    num_bytes = whole_bytes(operation, input_bytes, None, group_size)
    return Description(operation=operation, group="", group_size=group_size, num_bytes=num_bytes, seq=None)


def _first_known(operations: tuple[str, ...]) -> str:
    return next((name for name in operations if name != UNKNOWN_OPERATION), UNKNOWN_OPERATION)


def _size_of_all_groups(trace: Trace) -> int | None:
    """Return the number of ranks of every process group of more than one; None: the header lists none, or several."""
    sizes = {len(set(group.ranks)) for group in trace.groups} - {0, 1}
    return sizes.pop() if len(sizes) == 1 else None


# A group of more is listed nowhere: the lists of a rank must not fill its digest.
MAX_RANKS = 1_000


def group_ranks(trace: Trace, found: Collectives) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each named group that has calls, as the header lists them, else as a call does."""
    said = {c.group: c.ranks for c in trace.collectives if c.group and c.ranks}
    said |= {group.name: group.ranks for group in trace.groups if group.ranks}
    names = sorted(set(found.groups) & said.keys())
    return {name: tuple(sorted(set(said[name]))) for name in names if len(said[name]) <= MAX_RANKS}


# With nine columns of at most 20 digits, about 0.5 MB in a digest.
MAX_CALLS = 5_000
NOTHING = "none"  # the call follows on the one before it, or is the first


def call_columns(
    found: Collectives, steps: Mapping[int, StepWindows], causes: Mapping[int, Mapping[str, Spans]]
) -> Calls:
    """Return the first MAX_CALLS calls; `steps` and `causes` (of `local_causes`) are by device."""
    shown = slice(MAX_CALLS)
    device, begin = found.device[shown], found.begin_ns[shown]
    step, blamed = np.full(len(begin), UNKNOWN, np.int64), np.full(len(begin), NOTHING, object)
    segments = _segments(found)[shown]
    for index in np.unique(device).tolist():
        ours = device == index
        step[ours] = _step_of(begin[ours], steps[index])
        blamed[ours] = _longest(segments[ours], causes[index])
    names, causes_shown = _numbered((*found.operations[shown], *found.groups[shown])), _numbered(blamed.tolist())
    return Calls(
        names=tuple(names),
        causes=tuple(causes_shown),
        operation=tuple(names[name] for name in found.operations[shown]),
        group=tuple(names[name] for name in found.groups[shown]),
        seq=tuple(found.seq[shown].tolist()),
        num_bytes=tuple(found.num_bytes[shown].tolist()),
        begin_ns=tuple(begin.tolist()),
        end_ns=tuple(found.end_ns[shown].tolist()),
        exposed_ns=tuple(found.exposed_ns[shown].tolist()),
        step=tuple(step.tolist()),
        segment_cause=tuple(causes_shown[cause] for cause in blamed.tolist()),
        num_dropped=len(found) - len(begin),
    )


def local_causes(
    device: DeviceEvents,
    used: Occupancy,
    idle: Mapping[str, Spans],
    activities: Mapping[int, Activity],
    training_thread: int,
) -> dict[str, Spans]:
    """Return when a rank did what besides communicating, as disjoint sets of times by cause.

    A device computes, copies, or is `idle` for one of IDLE_CAUSES. A host without devices is asked what its training
    thread did, an operator inside of the loader being the loader's; what remains is "compute".
    """
    if device.index == HOST:
        host = idle_by_cause(whole_span(device), device, activities, training_thread)
        return {"compute" if cause == "dispatch" else cause: spans for cause, spans in host.items()}
    return {
        "compute": used.exclusive[Part.COMPUTE],
        "copy": merge(used.exclusive[Part.H2D], used.exclusive[Part.COPY]),
        **idle,
    }


def _segments(found: Collectives) -> Spans:
    """Return int64[n, 2]: from the end of all earlier calls to the begin of each; empty where one still runs."""
    ended = np.maximum.accumulate(found.end_ns)
    before = np.concatenate((found.begin_ns[:1], ended[:-1]))
    return np.stack((np.minimum(before, found.begin_ns), found.begin_ns), axis=1)


def _step_of(times: NDArray[np.int64], windows: StepWindows) -> NDArray[np.int64]:
    at = np.searchsorted(windows.spans[:, 0], times, side="right") - 1
    ends = np.append(windows.spans[:, 1], times.min())  # of no step: before every time
    return np.where((at >= 0) & (times < ends[at]), np.append(windows.numbers, UNKNOWN)[at], UNKNOWN)


def _longest(segments: Spans, causes: Mapping[str, Spans]) -> NDArray[np.object_]:
    """Return the cause that lasts longest in each segment."""
    names = np.array([NOTHING, *causes], object)
    lengths = np.stack([np.zeros(len(segments)), *(lengths_within(spans, segments) for spans in causes.values())])
    return np.asarray(names[np.argmax(lengths, axis=0)])


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: index for index, name in enumerate(dict.fromkeys(names))}


# A rank whose every call has its own size (an all-to-all of ragged batches) must not fill the digest.
MAX_SIZES = 300
_SizeKey = tuple[str, str, int, int, str]  # operation, group, ranks, bytes, type
# What a fit needs to mean anything: so many sizes, so far apart, of so many calls each that one of them hardly waited,
# and times that follow the sizes.
_MIN_SIZES = 3
_MIN_CALLS = 3
_MIN_RANGE = 4
_MAX_RMS_ERROR = 0.25
# Of the size at which latency and transfer take alike: below a quarter, four fifths of the time are latency.
_LATENCY_BOUND = 0.25


def collective_sizes(calls: Collectives) -> tuple[CollectiveSize, ...]:
    """Return one entry for each operation, group, size and type, those that took longest first.

    Beyond MAX_SIZES, the rest of each operation is one entry without group, size and type.
    """
    duration = calls.end_ns - calls.begin_ns
    columns = (calls.operations, calls.groups, calls.group_size.tolist(), calls.num_bytes.tolist(), calls.dtypes)
    keys = list(zip(*columns, strict=True))
    rows = _grouped(keys)
    if len(rows) > MAX_SIZES:
        longest = sorted(rows, key=lambda key: int(duration[rows[key]].sum()), reverse=True)
        kept = set(longest[:MAX_SIZES])
        rows = _grouped([key if key in kept else (key[0], "", UNKNOWN, UNKNOWN, "") for key in keys])
    sizes = (_collective_size(key, duration[at], calls.exposed_ns[at]) for key, at in rows.items())
    return tuple(sorted(sizes, key=lambda size: size.total_ns, reverse=True))


def _grouped(keys: list[_SizeKey]) -> dict[_SizeKey, NDArray[np.int64]]:
    """Return the indices of each key."""
    found: defaultdict[_SizeKey, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        found[key].append(index)
    return {key: np.array(indices, np.int64) for key, indices in found.items()}


def _collective_size(key: _SizeKey, duration_ns: NDArray[np.int64], exposed_ns: NDArray[np.int64]) -> CollectiveSize:
    operation, group, group_size, num_bytes, dtype = key
    median = int(np.median(duration_ns))
    algbw = num_bytes / median if num_bytes > 0 and median > 0 else None  # a byte per ns is a GB/s
    factor = bus_factor(operation, group_size)
    return CollectiveSize(
        operation=operation,
        group=group,
        group_size=group_size if group_size > 0 else None,
        num_bytes=num_bytes if num_bytes > 0 else None,
        count=len(duration_ns),
        total_ns=int(duration_ns.sum()),
        exposed_ns=int(exposed_ns.sum()),
        median_ns=median,
        min_ns=int(duration_ns.min()),
        algbw_gb_s=algbw,
        busbw_gb_s=None if algbw is None or factor is None else algbw * factor,
        dtype=dtype,
    )


def small_calls(found: Collectives) -> tuple[SmallCalls, ...]:
    """Return which calls are latency-bound, for each operation and group whose times tell it.

    The shortest call of each size is fitted by latency + bytes / bandwidth. It may have waited for peers all the same,
    so that the latency is an upper bound. Where sizes are few or alike, or time does not follow them, nothing is said.
    """
    groups: defaultdict[tuple[str, str, int], list[int]] = defaultdict(list)
    keys = zip(found.operations, found.groups, found.group_size.tolist(), strict=True)
    for index, key in enumerate(keys):
        if found.num_bytes[index] > 0 and found.end_ns[index] > found.begin_ns[index]:
            groups[key].append(index)
    judged = (_judged(found, operation, group, np.array(at)) for (operation, group, _), at in groups.items())
    return tuple(entry for entry in judged if entry is not None)


def _judged(found: Collectives, operation: str, group: str, calls: NDArray[np.int64]) -> SmallCalls | None:
    num_bytes, duration = found.num_bytes[calls], (found.end_ns - found.begin_ns)[calls]
    line = _fitted(num_bytes, duration)
    if line is None:
        return None
    latency_ns, ns_per_byte = line
    limit = int(_LATENCY_BOUND * latency_ns / ns_per_byte)
    is_small = num_bytes < limit
    return SmallCalls(
        operation=operation,
        group=group,
        latency_ns=int(latency_ns),
        bandwidth_gb_s=1 / ns_per_byte,
        limit_bytes=limit,
        count=len(calls),
        small_count=int(np.count_nonzero(is_small)),
        small_total_ns=int(duration[is_small].sum()),
        small_exposed_ns=int(found.exposed_ns[calls][is_small].sum()),
    )


def _fitted(num_bytes: NDArray[np.int64], duration_ns: NDArray[np.int64]) -> tuple[float, float] | None:
    """Return latency and ns per byte, fitted with relative errors to the shortest call of each size; None: unfit."""
    sizes, which, counts = np.unique(num_bytes, return_inverse=True, return_counts=True)
    shortest = np.full(len(sizes), np.inf)
    np.minimum.at(shortest, which, duration_ns)
    sizes, shortest = sizes[counts >= _MIN_CALLS], shortest[counts >= _MIN_CALLS]
    if len(sizes) < _MIN_SIZES or sizes[-1] < _MIN_RANGE * sizes[0]:
        return None
    terms = np.stack((1 / shortest, sizes / shortest), axis=1)
    line, *_ = np.linalg.lstsq(terms, np.ones(len(sizes)), rcond=None)
    error = terms @ line - 1
    if line.min() <= 0 or np.sqrt(np.mean(error**2)) > _MAX_RMS_ERROR:
        return None
    return float(line[0]), float(line[1])
