"""Ranks that compute and communicate without noise: what is put in has to come back to the nanosecond."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike

from dpdoctor.digest import Calls, CollectiveSize, Digest

MS = 1_000_000


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call of one rank, in true time; `hidden_ns` of it beside compute."""

    begin_ns: int
    end_ns: int
    operation: str = "all_reduce"
    group: str = "0"
    seq: int = -1
    num_bytes: int = 4096
    step: int = -1
    cause: str = "python"
    hidden_ns: int = 0


def lockstep(
    segments: ArrayLike, transfers: Sequence[int], *, per_step: int = 1, numbered: bool = True
) -> list[list[Call]]:
    """Return the calls of r ranks that all take part in n calls.

    `segments` [n, r] is each rank's work before each call; all leave a call when its transfer ends, which begins when
    the last one has come.
    """
    ranks: list[list[Call]] = [[] for _ in np.asarray(segments)[0]]
    now = 0
    for number, (work, transfer) in enumerate(zip(np.asarray(segments).tolist(), transfers, strict=True)):
        end = now + max(work) + transfer
        for calls, own in zip(ranks, work, strict=True):
            seq = number if numbered else -1
            calls.append(Call(begin_ns=now + own, end_ns=end, seq=seq, step=number // per_step))
        now = end
    return ranks


def digest(
    rank: int | None, calls: Sequence[Call], *, offset_ns: int = 0, base_ns: int = 0, num_ranks: int = 2
) -> Digest:
    """Return what a rank whose clock is ahead by `offset_ns` keeps of these calls."""
    names = sorted({name for call in calls for name in (call.operation, call.group)})
    causes = sorted({call.cause for call in calls})
    return Digest(
        source=f"{rank}.json",
        rank=rank,
        world_size=num_ranks,
        backend=None,
        host=None,
        base_ns=base_ns,
        has_device=False,
        step_source="ProfilerStep",
        num_events=len(calls),
        devices=(),
        kernels=(),
        operators=(),
        collectives=(),
        calls=Calls(
            names=tuple(names),
            causes=tuple(causes),
            operation=tuple(names.index(call.operation) for call in calls),
            group=tuple(names.index(call.group) for call in calls),
            seq=tuple(call.seq for call in calls),
            num_bytes=tuple(call.num_bytes for call in calls),
            begin_ns=tuple(call.begin_ns + offset_ns for call in calls),
            end_ns=tuple(call.end_ns + offset_ns for call in calls),
            exposed_ns=tuple(call.end_ns - call.begin_ns - call.hidden_ns for call in calls),
            step=tuple(call.step for call in calls),
            segment_cause=tuple(causes.index(call.cause) for call in calls),
        ),
    )


def digests(ranks: Sequence[Sequence[Call]], *, offsets_ns: Sequence[int] | None = None) -> list[Digest]:
    """Return one digest per rank, numbered from 0."""
    offsets = offsets_ns or [0] * len(ranks)
    return [
        digest(rank, calls, offset_ns=offset, num_ranks=len(ranks))
        for rank, (calls, offset) in enumerate(zip(ranks, offsets, strict=True))
    ]


def with_group_size(made: Digest, group: str, size: int) -> Digest:
    """Return the digest of a rank that knows how many members a group has."""
    known = CollectiveSize(
        operation="all_reduce",
        group=group,
        group_size=size,
        num_bytes=4096,
        count=1,
        total_ns=1,
        exposed_ns=1,
        median_ns=1,
        min_ns=1,
        algbw_gb_s=None,
        busbw_gb_s=None,
    )
    return replace(made, collectives=(known,))
