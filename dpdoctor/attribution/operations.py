"""One name for each collective operation, whatever torch, NCCL, RCCL or gloo call it; its bytes and its ranks.

Those come from the sizes of the tensors that torch writes down.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from dpdoctor.trace.model import UNKNOWN, Trace

UNKNOWN_OPERATION = "unknown"
# Compared with a name's letters alone, in lower case; the first that is found decides: `all_reduce_barrier` is how NCCL
# makes a barrier, and "reduce" is a part of many.
_OPERATIONS = {
    "barrier": "barrier",
    "sendrecv": "send_recv",
    "alltoall": "all_to_all",
    "allreduce": "all_reduce",
    "devicereduce": "all_reduce",  # cross_device_reduce
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "recv": "recv",
    "send": "send",
}
# nccl-tests' PERFORMANCE.md: every byte crosses the bus (n - 1) / n times in each round over the n ranks, or just once.
_ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "gather": 1}
_PASSED_ON = frozenset({"broadcast", "reduce", "send", "recv", "send_recv"})
_NO_LETTER = re.compile(r"[^a-z]")


def operation(name: str) -> str:
    """Return the operation that a kernel, an annotation, an operator or metadata name; "unknown" for other names."""
    letters = _NO_LETTER.sub("", name.lower())
    return next((form for sign, form in _OPERATIONS.items() if sign in letters), UNKNOWN_OPERATION)


def operations_of(trace: Trace, *rows: NDArray[np.int64]) -> dict[int, str]:
    """Return the operation that each of these rows names; "unknown" for the row UNKNOWN."""
    asked = np.unique(np.concatenate(rows))
    asked = asked[asked != UNKNOWN]
    names = trace.events.name[asked].tolist()
    by_name = {name: operation(trace.names[name]) for name in set(names)}
    found = {row: by_name[name] for row, name in zip(asked.tolist(), names, strict=True)}
    return {**found, UNKNOWN: UNKNOWN_OPERATION}


def bus_factor(operation: str, group_size: int) -> float | None:
    """Return busbw / algbw as nccl-tests define it; None: they do not measure the operation, or the ranks are unknown.

    A group of one rank moves nothing over a bus.
    """
    if operation in _PASSED_ON:
        return 1.0
    rounds = _ROUNDS.get(operation)
    return None if rounds is None or group_size < 1 else rounds * (group_size - 1) / group_size


_OF_PARTS = frozenset({"all_gather", "gather"})  # each rank's input is one part of the whole


def ranks_of(operation: str, input_bytes: int | None, operator_bytes: int | None) -> int | None:
    """Return the number of ranks; None: the operation does not show it, a size is missing, or they do not agree."""
    if not input_bytes or not operator_bytes:
        return None
    output_bytes = operator_bytes - input_bytes
    if operation == "all_gather":
        return _quotient(output_bytes, input_bytes)
    if operation == "reduce_scatter":
        return _quotient(input_bytes, output_bytes)
    return None


def may_be(operation: str, input_bytes: int | None, operator_bytes: int | None) -> bool:
    """Return whether an operator with these tensors can have made a call with this input."""
    if not input_bytes or not operator_bytes:
        return True
    if operation in {"all_gather", "reduce_scatter"}:
        return ranks_of(operation, input_bytes, operator_bytes) is not None
    return operator_bytes >= input_bytes


def whole_bytes(
    operation: str, input_bytes: int | None, output_bytes: int | None, group_size: int | None
) -> int | None:
    """Return the bytes of the whole tensor, as nccl-tests count them; None: not said, or nothing.

    An all-gather's whole is its output, or its input times the ranks; a scatter's is known only where it starts; for
    all others it is the input, which of point-to-point calls may be written as output.
    """
    if operation == "scatter":
        return None
    if operation not in _OF_PARTS:
        return input_bytes or output_bytes or None
    if output_bytes and operation == "all_gather":
        return output_bytes
    return input_bytes * group_size if input_bytes and group_size else None


def _quotient(whole: int, part: int) -> int | None:
    return whole // part if part > 0 and whole > 0 and whole % part == 0 else None
