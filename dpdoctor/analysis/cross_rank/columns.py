"""The calls of one rank as arrays, with what depends on that rank alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor.digest import Calls, Digest

# No rank leaves one of these before all have entered it. Not so broadcast and reduce.
SYNCHRONISING = frozenset({"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier"})
# These are not called by all ranks of a group alike.
POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})

Scalar = TypeVar("Scalar", bound=np.generic)


class RankCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The m calls of one rank, in the order of their begin.

    Attributes:
        operation, group, cause: names of each call.
        begin_ns, end_ns: int64[m], since the base of this rank's trace.
        segment_ns: float64[m], local work before the call: from the end of all earlier calls of the rank, of whatever
            group, to its begin; 0 where an earlier one still ran, NaN for the first.
        synchronising: bool[m].
    """

    rank: int
    base_ns: int
    operation: tuple[str, ...]
    group: tuple[str, ...]
    cause: tuple[str, ...]
    seq: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    step: NDArray[np.int64]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    segment_ns: NDArray[np.float64]
    synchronising: NDArray[np.bool_]

    def of_group(self, name: str) -> NDArray[np.int64]:
        """Return int64[k]: the rows of a group's collectives, point-to-point calls left out."""
        chosen = (
            row
            for row, (group, operation) in enumerate(zip(self.group, self.operation, strict=True))
            if group == name and operation not in POINT_TO_POINT
        )
        return np.fromiter(chosen, np.int64)


def columns(digest: Digest, rank: int) -> RankCalls:
    """Return the calls of one digest."""
    calls = digest.calls
    begin, end = np.array(calls.begin_ns, np.int64), np.array(calls.end_ns, np.int64)
    operation = tuple(calls.names[index] for index in calls.operation)
    return RankCalls(
        rank=rank,
        base_ns=digest.base_ns,
        operation=operation,
        group=tuple(calls.names[index] for index in calls.group),
        cause=_causes(calls),
        seq=np.array(calls.seq, np.int64),
        num_bytes=np.array(calls.num_bytes, np.int64),
        step=np.array(calls.step, np.int64),
        begin_ns=begin,
        end_ns=end,
        segment_ns=_segments(begin, end),
        synchronising=np.array([name in SYNCHRONISING for name in operation], bool),
    )


def _causes(calls: Calls) -> tuple[str, ...]:
    return tuple(calls.causes[index] for index in calls.segment_cause)


def _segments(begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.float64]:
    segments = np.full(len(begin), np.nan)
    segments[1:] = np.maximum(0, begin[1:] - np.maximum.accumulate(end)[:-1])
    return segments


def taken(rows: NDArray[np.int64], columns: Sequence[NDArray[Scalar]]) -> NDArray[Scalar]:
    """Return [n, k]: of the k ranks' columns, what the rows int64[n, k] select."""
    return np.stack([column[rows[:, k]] for k, column in enumerate(columns)], axis=1)
