"""One collective, found again on every rank of its group: by its number, or by its place among the rank's calls."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor import units
from dpdoctor.digest import Calls, Digest

# No rank leaves one of these before all have entered it. Not so broadcast and reduce.
SYNCHRONISING = frozenset({"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier"})
# These are not called by all ranks of a group alike.
POINT_TO_POINT = frozenset({"send", "recv", "send_recv"})

Scalar = TypeVar("Scalar", bound=np.generic)


class RankCalls(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """The m calls of one rank, in the order of their begin.

    Attributes:
        operation, group, cause: names of each call.
        group_ranks, group_sizes: by the name of a group, which ranks it has and how many, as far as the trace says.
        begin_ns, end_ns: int64[m], since the base of this rank's trace.
        exposed_ns: int64[m], while nothing computed.
        segment_ns: float64[m], local work before the call: from the end of all earlier calls of the rank, of whatever
            group, to its begin; 0 where an earlier one still ran, NaN for the first.
        synchronising: bool[m].
    """

    rank: int
    base_ns: int
    operation: tuple[str, ...]
    group: tuple[str, ...]
    cause: tuple[str, ...]
    group_ranks: Mapping[str, tuple[int, ...]]
    group_sizes: Mapping[str, frozenset[int]]
    seq: NDArray[np.int64]
    num_bytes: NDArray[np.int64]
    step: NDArray[np.int64]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    exposed_ns: NDArray[np.int64]
    segment_ns: NDArray[np.float64]
    synchronising: NDArray[np.bool_]

    @cached_property
    def of_groups(self) -> Mapping[str, NDArray[np.int64]]:
        """Return by group int64[k]: the rows of its collectives, point-to-point calls left out."""
        found: dict[str, list[int]] = {name: [] for name in dict.fromkeys(self.group)}
        for row, (group, operation) in enumerate(zip(self.group, self.operation, strict=True)):
            if operation not in POINT_TO_POINT:
                found[group].append(row)
        return {name: np.array(rows, np.int64) for name, rows in found.items()}

    @cached_property
    def duration_ns(self) -> NDArray[np.int64]:
        """Return int64[m]."""
        return self.end_ns - self.begin_ns


def rank_calls(digest: Digest, rank: int) -> RankCalls:
    """Return the calls of one digest."""
    calls = digest.calls
    begin, end = np.array(calls.begin_ns, np.int64), np.array(calls.end_ns, np.int64)
    operation = tuple(calls.names[index] for index in calls.operation)
    return RankCalls(
        rank=rank,
        base_ns=digest.base_ns,
        operation=operation,
        group=tuple(calls.names[index] for index in calls.group),
        cause=_causes_of_calls(calls),
        group_ranks=digest.group_ranks,
        group_sizes=_sizes(digest),
        seq=np.array(calls.seq, np.int64),
        num_bytes=np.array(calls.num_bytes, np.int64),
        step=np.array(calls.step, np.int64),
        begin_ns=begin,
        end_ns=end,
        exposed_ns=np.array(calls.exposed_ns, np.int64),
        segment_ns=_segments(begin, end),
        synchronising=np.array([name in SYNCHRONISING for name in operation], bool),
    )


def _sizes(digest: Digest) -> dict[str, frozenset[int]]:
    found: defaultdict[str, set[int]] = defaultdict(set)
    for size in digest.collectives:
        if size.group_size is not None and size.operation not in POINT_TO_POINT:
            found[size.group].add(size.group_size)
    return {name: frozenset(sizes) for name, sizes in found.items()}


def _causes_of_calls(calls: Calls) -> tuple[str, ...]:
    return tuple(calls.causes[index] for index in calls.segment_cause)


def _segments(begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.float64]:
    segments = np.full(len(begin), np.nan)
    segments[1:] = np.maximum(0, begin[1:] - np.maximum.accumulate(end)[:-1])
    return segments


def taken(rows: NDArray[np.int64], columns: Sequence[NDArray[Scalar]]) -> NDArray[Scalar]:
    """Return [n, k]: of the k ranks' columns, what the rows int64[n, k] select."""
    return np.stack([column[rows[:, k]] for k, column in enumerate(columns)], axis=1)


# Common calls that a shift needs at least, and as a share of the shorter trace: fewer agree by chance.
MIN_COMMON = 8
MIN_COMMON_SHARE = 0.25
# An alignment is chosen over another one when its ends agree so many times better.
CLEARLY = 2.0
# The share of the times from end to end that are compared.
COMPARED = 0.9
# How far two clocks that both count ns may seem to contradict each other: by drift, and by rounding to us.
MAX_DRIFT = 1e-4
CLOCK_SLACK_NS = 100_000

Rows = NDArray[np.int64]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """The k calls of one rank that are to be aligned.

    Attributes:
        token: int64[k], equal for equal operation and size, on all ranks.
        begin_ns, end_ns: int64[k], on a clock of the rank's own.
        synchronising: bool[k].
    """

    token: NDArray[np.int64]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    synchronising: NDArray[np.bool_]


class _Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Our call k is their call k - shift, as far as sizes agree."""

    shift: int
    misfit: float


def align(ours: Side, theirs: Side) -> tuple[Rows, Rows] | str:
    """Return the rows of both sides that belong together, int64[k] each, or why that cannot be told.

    Nothing compares the two clocks: a synchronising call ends on all ranks together, so where the rows belong together
    the time from one end to the next is the same on both sides. Of all shifts under which operations and sizes agree
    and no rank leaves a call before the other came, the one whose times agree clearly better than those of all others
    is right. Sides of the same length stay as they are where another shift is not clearly better than that.
    """
    candidates = tuple(_candidates(ours, theirs))
    if not candidates and min(len(ours.token), len(theirs.token)) < MIN_COMMON:
        return "too few calls to tell which belong together, and no sequence numbers"
    if not candidates:
        return "operations, sizes or times of the calls do not agree under any shift"
    best = min(candidates, key=lambda candidate: candidate.misfit)
    same_length = len(ours.token) == len(theirs.token)
    unshifted = next((candidate for candidate in candidates if same_length and candidate.shift == 0), None)
    if unshifted is not None and not _clearly(best, unshifted):
        best = unshifted
    elif not all(_clearly(best, candidate) for candidate in candidates if candidate is not best):
        return "calls that repeat too regularly to tell which belong together, and no sequence numbers"
    pairs = _pairs(ours, theirs, best.shift)
    assert pairs is not None
    return pairs


def _clearly(better: _Candidate, worse: _Candidate) -> bool:
    return CLEARLY * better.misfit < worse.misfit


def _candidates(ours: Side, theirs: Side) -> Iterator[_Candidate]:
    for shift in _shifts(len(ours.token), len(theirs.token)):
        pairs = _pairs(ours, theirs, shift)
        if pairs is not None and possible(ours, theirs, *pairs):
            yield _Candidate(shift=shift, misfit=_misfit(ours, theirs, *pairs))


def _shifts(ours: int, theirs: int) -> range:
    """Return the shifts that leave enough common calls; sides too short for that belong together as they are or not."""
    least = max(MIN_COMMON, math.ceil(MIN_COMMON_SHARE * min(ours, theirs)))
    if min(ours, theirs) < least:
        return range(1 if ours == theirs else 0)
    return range(least - theirs, ours - least + 1)


def _pairs(ours: Side, theirs: Side, shift: int) -> tuple[Rows, Rows] | None:
    """Pair the n-th calls of each token: on threads of their own, calls of two sizes may begin in either order."""
    first, last = max(shift, 0), min(len(ours.token), len(theirs.token) + shift)
    left, right = ours.token[first:last], theirs.token[first - shift : last - shift]
    here = np.arange(first, last)
    if np.array_equal(left, right):
        return here, here - shift
    kinds = 1 + int(max(left.max(), right.max()))
    if not np.array_equal(np.bincount(left, minlength=kinds), np.bincount(right, minlength=kinds)):
        return None
    order = np.argsort(left, kind="stable")
    partner = np.empty_like(here)
    partner[order] = here[np.argsort(right, kind="stable")] - shift
    return here, partner


def possible(ours: Side, theirs: Side, left: Rows, right: Rows) -> bool:
    """Return whether some offset between the clocks lets every synchronising call end, on both, after both began it."""
    chosen = ours.synchronising[left]
    left, right = left[chosen], right[chosen]
    if not len(left):
        return True
    at_least = np.max(theirs.begin_ns[right] - ours.end_ns[left])
    at_most = np.min(theirs.end_ns[right] - ours.begin_ns[left])
    span = ours.end_ns[left].max() - ours.begin_ns[left].min()
    return bool(at_least <= at_most + CLOCK_SLACK_NS + MAX_DRIFT * span)


def _misfit(ours: Side, theirs: Side, left: Rows, right: Rows) -> float:
    """Return how far the times from end to end of synchronising calls are from equal, in ns: their mean difference.

    The largest are left out: of ends that a thread noted late because something kept it from running.
    """
    chosen = ours.synchronising[left]
    differences = np.abs(np.diff(ours.end_ns[left[chosen]]) - np.diff(theirs.end_ns[right[chosen]]))
    kept = np.sort(differences)[: math.ceil(COMPARED * len(differences))]
    return float(kept.mean()) if len(kept) else math.inf


# Ranks may give and take different numbers of bytes.
UNEVEN = frozenset({"all_to_all"})
UNSAID = -1


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one group that all its ranks hold.

    Attributes:
        rows: int64[n, k] into each rank's calls, in the order of the first rank; n is 0 where the group was refused.
        size: of the group; None: not said.
        left_out: of each rank, calls that not all ranks hold.
        reason: why the group was refused; None: it was not.
    """

    group: str
    ranks: tuple[int, ...]
    rows: NDArray[np.int64]
    size: int | None = None
    left_out: tuple[int, ...] = ()
    matched_by: Literal["sequence", "order"] | None = None
    reason: str | None = None


def match(ranks: Sequence[RankCalls]) -> tuple[Match, ...]:
    """Return every process group of these ranks with its common calls, by sequence numbers first."""
    by_name: defaultdict[str, list[RankCalls]] = defaultdict(list)
    for rank in ranks:
        for name in rank.of_groups:
            by_name[name].append(rank)
    return tuple(_group(name, members) for name, of_name in by_name.items() for members in _by_group(name, of_name))


def _by_group(name: str, ranks: Sequence[RankCalls]) -> Iterable[list[RankCalls]]:
    """Return the ranks that mean the same group by a name: torch 2.4 to 2.8 call all parts of a split alike."""
    told = dict.fromkeys(rank.group_ranks[name] for rank in ranks if name in rank.group_ranks)
    found: defaultdict[tuple[int, ...], list[RankCalls]] = defaultdict(list)
    for rank in ranks:
        own = rank.group_ranks.get(name)
        found[own or next((others for others in told if rank.rank in others), ())].append(rank)
    return found.values()


def _group(name: str, ranks: Sequence[RankCalls]) -> Match:
    members = [rank for rank in ranks if len(rank.of_groups[name])]
    rows = [rank.of_groups[name] for rank in members]
    sizes = frozenset[int]().union(*(rank.group_sizes.get(name, ()) for rank in members))
    size = min(sizes) if len(sizes) == 1 else None
    numbered = all((rank.seq[of_rank] != UNSAID).all() for rank, of_rank in zip(members, rows, strict=True))
    common = _common(members, rows, size, numbered=numbered)
    if isinstance(common, str):
        numbers = tuple(rank.rank for rank in members or ranks)
        return Match(group=name, ranks=numbers, rows=np.empty((0, len(numbers)), np.int64), size=size, reason=common)
    return Match(
        group=name,
        ranks=tuple(rank.rank for rank in members),
        rows=taken(common, rows),
        size=size,
        left_out=tuple(len(of_rank) - len(common) for of_rank in rows),
        matched_by="sequence" if numbered else "order",
    )


def _common(
    members: Sequence[RankCalls], rows: Sequence[NDArray[np.int64]], size: int | None, *, numbered: bool
) -> NDArray[np.int64] | str:
    """Return int64[n, k]: where in `rows` the calls lie that all members hold, or in a clause why that is not told."""
    if not members:
        return "it has sends and receives only, which differ by rank"
    if len(members) < 2:
        return "calls of fewer than two ranks are here"
    if size is not None and len(members) > size:
        return f"{len(members)} ranks have calls in a group of {size}: it is several groups"
    sides, numbers = _sides(members, rows), tuple(rank.rank for rank in members)
    common = _by_sequence(members, rows) if numbered else _by_order(numbers, sides)
    if isinstance(common, str):
        return common
    if not len(common):
        return "no call is in the traces of all ranks"
    return _contradiction(numbers, sides, common) or common


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
