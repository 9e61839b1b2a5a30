"""Every communication event of a rank: its operation, group and size, who made it, how much of it is exposed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.callers import Callers, callers
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.intervals import lengths_within, merge
from dpdoctor.attribution.operations import UNKNOWN_OPERATION, operation, operations_of, ranks_of, whole_bytes
from dpdoctor.attribution.parts import Part
from dpdoctor.trace.model import UNKNOWN, Collective, Trace


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


_ABSURD = 1 << 62


class Collectives(msgspec.Struct, frozen=True, kw_only=True):
    """The n communication events of a rank in the order of their begin, on all its devices; arrays are int64[n].

    Attributes:
        rows: index into Trace.events.
        device: DeviceEvents.index.
        caller: the host event that made it: the operator, else the annotation, else the launch; UNKNOWN: none is seen.
        begin_ns, end_ns: of the kernel, or of the span on the backend's thread.
        exposed_ns: while nothing computed on the same device; on a host, while its training thread ran no operator.
        operations: n names of `collective_names`.
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


def _column(values: Sequence[int | None]) -> NDArray[np.int64]:
    """Damaged files hold any number: what is negative or absurdly large is not known."""
    return np.array([UNKNOWN if value is None or not 0 <= value < _ABSURD else value for value in values], np.int64)
