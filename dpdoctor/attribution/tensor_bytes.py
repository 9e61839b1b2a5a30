"""How many bytes and ranks a collective had, from the sizes of the tensors that torch writes down.

An operator of c10d has the rank's input and output among its inputs, an annotation only the input: together they tell
the number of ranks of an all-gather or a reduce-scatter.
"""

from __future__ import annotations

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
