"""What a trace says of each communication event, put together from the event and from who made it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.callers import Callers
from dpdoctor.attribution.collective_names import UNKNOWN_OPERATION, operation, operations_of
from dpdoctor.attribution.tensor_bytes import ranks_of, whole_bytes
from dpdoctor.trace.columns import UNKNOWN
from dpdoctor.trace.model import Collective, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
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
