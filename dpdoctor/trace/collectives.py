"""What a communication event says in its arguments: the metadata of NCCL where there are any, else shapes."""

from __future__ import annotations

from typing import Any

from dpdoctor.trace import sizes
from dpdoctor.trace.columns import UNKNOWN
from dpdoctor.trace.events import Args, plain
from dpdoctor.trace.model import Collective
from dpdoctor.trace.numbers import integer, whole_numbers

# The spans of the backends and the operators that call them: both carry the shapes of what is communicated.
CARRIES_SHAPES = ("gloo:", "nccl:", "mpi:", "ucc:", "xccl:", "c10d::")


def collective(row: int, args: Args) -> Collective:
    """Return what these arguments say."""
    has_metadata = args.collective is not None
    dtype = str(args.dtype) if has_metadata else None
    return Collective(
        row=row,
        name=str(args.collective) if has_metadata else None,
        dtype=dtype,
        in_bytes=sizes.of_elements(args.in_nelems, dtype)
        if has_metadata
        else sizes.of_inputs(args.input_dims, args.input_type),
        out_bytes=sizes.of_elements(args.out_nelems, dtype),
        group=None if args.group_name is None else str(args.group_name),
        group_size=_known(args.group_size),
        ranks=_ranks(args),
        seq=_known(args.seq),
    )


def _ranks(args: Args) -> tuple[int, ...]:
    """Return the ranks of a group: a list, or a text that writes one ("[0, 1]"); torch shortens long lists."""
    value = plain(args.group_ranks)
    return whole_numbers(plain(value.encode()) if isinstance(value, str) else value)


def _known(value: Any) -> int | None:
    number = integer(value)
    return None if number == UNKNOWN else number
