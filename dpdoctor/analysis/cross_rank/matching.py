"""One collective, found again on every rank of its group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpdoctor import units
from dpdoctor.analysis.cross_rank.columns import RankCalls, taken
from dpdoctor.analysis.cross_rank.shift import Side, align, possible

# Ranks may give and take different numbers of bytes.
UNEVEN = frozenset({"all_to_all"})
UNSAID = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The calls of one group that all its ranks hold.

    Attributes:
        rows: int64[n, k] into each rank's calls, in the order of the first rank; n is 0 where the group was refused.
        left_out: of each rank, calls that not all ranks hold.
        reason: why the group was refused; None: it was not.
    """

    group: str
    ranks: tuple[int, ...]
    rows: NDArray[np.int64]
    left_out: tuple[int, ...] = ()
    matched_by: Literal["sequence", "order"] | None = None
    reason: str | None = None


def match(ranks: Sequence[RankCalls]) -> tuple[Match, ...]:
    """Return every process group of these ranks with its common calls, by sequence numbers first."""
    names = dict.fromkeys(name for rank in ranks for name in rank.group)
    return tuple(_group(name, ranks) for name in names)


def _group(name: str, ranks: Sequence[RankCalls]) -> Match:
    chosen = [(rank, rows) for rank in ranks if len(rows := rank.of_group(name))]
    members, own_rows = [rank for rank, _ in chosen], [rows for _, rows in chosen]
    numbers = tuple(rank.rank for rank in members)
    if len(members) < 2:
        return _refused(name, numbers, "calls of fewer than two ranks are here")
    sides = _sides(members, own_rows)
    numbered = all((rank.seq[row] != UNSAID).all() for rank, row in chosen)
    common = _by_sequence(members, own_rows) if numbered else _by_order(numbers, sides)
    if isinstance(common, str):
        return _refused(name, numbers, common)
    if not len(common):
        return _refused(name, numbers, "no call is in the traces of all ranks")
    contradiction = _contradiction(numbers, sides, common)
    if contradiction is not None:
        return _refused(name, numbers, contradiction)
    return Match(
        group=name,
        ranks=numbers,
        rows=taken(common, own_rows),
        left_out=tuple(len(row) - len(common) for row in own_rows),
        matched_by="sequence" if numbered else "order",
    )


def _refused(name: str, ranks: tuple[int, ...], reason: str) -> Match:
    return Match(group=name, ranks=ranks, rows=np.empty((0, len(ranks)), np.int64), reason=reason)


def _sides(members: Sequence[RankCalls], rows: Sequence[NDArray[np.int64]]) -> list[Side]:
    tokens: dict[tuple[str, int], int] = {}
    return [
        Side(
            token=np.fromiter((tokens.setdefault(key, len(tokens)) for key in _keys(rank, row)), np.int64),
            begin_ns=rank.begin_ns[row],
            end_ns=rank.end_ns[row],
            synchronising=rank.synchronising[row],
        )
        for rank, row in zip(members, rows, strict=True)
    ]


def _keys(rank: RankCalls, rows: NDArray[np.int64]) -> Iterable[tuple[str, int]]:
    for row in rows.tolist():
        operation = rank.operation[row]
        yield operation, UNSAID if operation in UNEVEN else int(rank.num_bytes[row])


def _by_sequence(members: Sequence[RankCalls], rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return int64[n, k]: where in `rows` the numbers lie that all ranks hold. Calls that torch coalesced share one."""
    places: list[dict[tuple[int, int], int]] = []
    for rank, row in zip(members, rows, strict=True):
        seen: dict[int, int] = {}
        place: dict[tuple[int, int], int] = {}
        for position, seq in enumerate(rank.seq[row].tolist()):
            seen[seq] = seen.get(seq, -1) + 1
            place[seq, seen[seq]] = position
        places.append(place)
    common = [key for key in places[0] if all(key in place for place in places)]
    return np.array([[place[key] for place in places] for key in common], np.int64).reshape(-1, len(places))


def _by_order(ranks: tuple[int, ...], sides: Sequence[Side]) -> NDArray[np.int64] | str:
    """Return int64[n, k]: where the calls lie that all ranks hold, each aligned with the first, or why not."""
    held = {position: [position] for position in range(len(sides[0].token))}
    for rank, side in zip(ranks[1:], sides[1:], strict=True):
        aligned = align(sides[0], side)
        if isinstance(aligned, str):
            return f"ranks {ranks[0]} and {rank}: {aligned}"
        theirs = dict(zip(aligned[0].tolist(), aligned[1].tolist(), strict=True))
        held = {ours: [*found, theirs[ours]] for ours, found in held.items() if ours in theirs}
    return np.array(list(held.values()), np.int64).reshape(-1, len(sides))


def _contradiction(ranks: tuple[int, ...], sides: Sequence[Side], common: NDArray[np.int64]) -> str | None:
    """Return what speaks against these being the same calls on all ranks, or None."""
    for k in range(1, len(sides)):
        pair = f"ranks {ranks[0]} and {ranks[k]}"
        differ = np.flatnonzero(sides[0].token[common[:, 0]] != sides[k].token[common[:, k]])
        if len(differ):
            return f"{pair}: operation or size of {units.count(len(differ), 'common call')} differ"
        if not possible(sides[0], sides[k], common[:, 0], common[:, k]):
            return f"{pair}: no offset of their clocks lets all common calls end after both ranks began them"
    return None
