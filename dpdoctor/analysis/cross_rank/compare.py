"""The digests of all ranks of one job into what they say together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dpdoctor import units
from dpdoctor.analysis.base.traces import why_unknown
from dpdoctor.analysis.cross_rank.causes import LongerThanOthers
from dpdoctor.analysis.cross_rank.matching import POINT_TO_POINT, Match, RankCalls, match, rank_calls
from dpdoctor.analysis.cross_rank.model import ClockOffset, CrossRank, CrossRankGroup, Stragglers
from dpdoctor.analysis.cross_rank.stragglers import (
    FLOOR_NS,
    LATE_SHARE,
    Pause,
    came_last,
    cause_of,
    common_calls,
    find_stragglers,
    pause_behind,
    step_lateness,
    steps_needed,
    too_few,
)
from dpdoctor.digest import Digest


def compare_ranks(digests: Iterable[Digest], pauses: Mapping[int, Sequence[Pause]] | None = None) -> CrossRank:
    """Return the comparison of the ranks of one job, in any order; what cannot be compared is named with its reason.

    `pauses` has, by rank, what the ranks recorded beside their traces; a late rank's cause is looked for there first.
    """
    chosen, notes = _by_rank(digests)
    ranks = {rank: rank_calls(digest, rank) for rank, digest in chosen.items()}
    groups = tuple(_group(found, ranks) for found in match(tuple(ranks.values())))
    steps = step_lateness(groups, ranks)

    longer = LongerThanOthers(chosen, steps)

    def cause(rank: int, late: list[int]) -> str | None:
        if known := pause_behind(groups, ranks[rank], (pauses or {}).get(rank, ()), late):
            return known
        return longer.cause(rank, late) if longer.tells(rank, late) else cause_of(groups, rank, late)

    world_size = max((digest.world_size or 0 for digest in chosen.values()), default=0)
    verdict = _none_seen(find_stragglers(steps, tuple(ranks), cause), groups, ranks)
    return CrossRank(
        ranks=tuple(ranks),
        missing=tuple(rank for rank in range(world_size) if rank not in ranks),
        groups=groups,
        steps=steps,
        verdict=_with_reason(verdict, groups, tuple(chosen.values())),
        came_last=came_last(groups, ranks),
        clocks=_clock_offsets(groups, ranks),
        notes=notes,
    )


def _none_seen(verdict: Stragglers, groups: Sequence[CrossRankGroup], ranks: Mapping[int, RankCalls]) -> Stragglers:
    """Return the verdict; that nobody is late is unknown where calls that are not compared take time enough for it."""
    if verdict.kind != "none":
        return verdict
    reason = next((reason for rank in ranks.values() for reason in _not_compared(rank, groups)), None)
    return verdict if reason is None else replace(verdict, kind="unknown", reason=reason)


def _not_compared(rank: RankCalls, groups: Sequence[CrossRankGroup]) -> Iterator[str]:
    """Yield in a clause which calls of a rank are not compared and take the time of a late rank, and why."""
    if not len(rank.begin_ns):
        return
    enough_ns = max(FLOOR_NS, LATE_SHARE * float(rank.end_ns.max() - rank.begin_ns.min()))
    for group in groups:
        if group.reason is not None and rank.rank in group.ranks:
            rows = rank.of_groups[group.name]
            if rank.duration_ns[rows].sum() >= enough_ns:
                yield f"group {group.name}: {group.reason}" if group.name else group.reason
    of_pairs = np.array([operation in POINT_TO_POINT for operation in rank.operation], bool)
    if rank.duration_ns[of_pairs].sum() >= enough_ns:
        yield "who waits in sends and receives is not compared"


def _with_reason(verdict: Stragglers, groups: Sequence[CrossRankGroup], digests: Sequence[Digest]) -> Stragglers:
    """Return the verdict; where it is unknown, with the reason that lies furthest back."""
    if verdict.kind != "unknown" or len(digests) < 2:
        return verdict
    steps = {step for group in groups if group.calls is not None for step in group.calls.step.tolist()} - {-1}
    needed = steps_needed(len(digests))
    refused = next((group.reason for group in groups if group.reason), None)
    reason = why_unknown(digests)
    if reason is None and not steps:
        reason = refused
    elif reason is None and len(steps) < needed:
        reason = too_few(needed, len(steps))
    return verdict if reason is None else replace(verdict, reason=reason)


def _by_rank(digests: Iterable[Digest]) -> tuple[dict[int, Digest], tuple[str, ...]]:
    """Return one digest per rank, by rank, and what was left out."""
    chosen: dict[int, Digest] = {}
    notes: list[str] = []
    for digest in digests:
        if digest.rank is None:
            notes.append(f"{digest.source} does not say its rank and is compared with no other")
        elif digest.rank in chosen:
            notes.append(f"{digest.source} is left out: {chosen[digest.rank].source} is of rank {digest.rank} too")
        else:
            chosen[digest.rank] = digest
        if digest.calls.num_dropped:
            dropped = units.count(digest.calls.num_dropped, "collective call")
            notes.append(f"{digest.source}: {dropped} beyond the limit are not compared")
    unknown = [rank for rank, digest in sorted(chosen.items()) if digest.unknown_communication]
    if 0 < len(unknown) < len(chosen):
        others = f" and of {units.count(len(unknown) - 1, 'other rank')}" if len(unknown) > 1 else ""
        notes.append(f"what is communicated is unknown of rank {unknown[0]}{others}: compared with no other")
    return dict(sorted(chosen.items())), tuple(notes)


def _group(found: Match, ranks: Mapping[int, RankCalls]) -> CrossRankGroup:
    members: Sequence[RankCalls] = [ranks[rank] for rank in found.ranks]
    return CrossRankGroup(
        name=found.group,
        ranks=found.ranks,
        num_missing=None if found.size is None else max(0, found.size - len(found.ranks)),
        matched_by=found.matched_by,
        left_out=found.left_out,
        calls=common_calls(found, members) if found.reason is None else None,
        reason=found.reason,
    )


# Clocks of one job gain less than that on each other in shorter traces than the spread of a call's ends.
DRIFT_FROM_NS = 60_000_000_000


def _clock_offsets(groups: Sequence[CrossRankGroup], ranks: Mapping[int, RankCalls]) -> tuple[ClockOffset, ...]:
    """Return the offset of every rank that shares calls with the first one, itself or over other ranks.

    A synchronising call ends on all ranks together, so the median difference of the ends is that of the clocks. It is
    for drawing ranks on one axis: no figure is computed from it.
    """
    if not ranks:
        return ()
    first = min(ranks)
    found = {first: ClockOffset(rank=first, offset_ns=0, error_ns=0, drift=0.0, at_ns=ranks[first].base_ns)}
    waiting = deque([first])
    while waiting:
        known = waiting.popleft()
        for rank in sorted(ranks.keys() - found.keys()):
            ends = _common_ends(groups, ranks[known], ranks[rank])
            if len(ends):
                found[rank] = _beyond(found[known], _offset(rank, ends))
                waiting.append(rank)
    return tuple(found[rank] for rank in sorted(found))


def _common_ends(groups: Sequence[CrossRankGroup], ours: RankCalls, theirs: RankCalls) -> NDArray[np.int64]:
    """Return int64[n, 2]: unix times at which their common calls ended on either rank, by time."""
    ends = [
        np.stack([_unix_ends(side, calls.rows[:, group.ranks.index(side.rank)]) for side in (ours, theirs)], axis=1)
        for group in groups
        if (calls := group.calls) is not None and {ours.rank, theirs.rank} <= set(group.ranks)
    ]
    both = np.concatenate(ends) if ends else np.empty((0, 2), np.int64)
    return both[np.argsort(both[:, 1])]


def _unix_ends(rank: RankCalls, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return rank.base_ns + rank.end_ns[rows]


def _offset(rank: int, ends: NDArray[np.int64]) -> ClockOffset:
    difference, at = ends[:, 1] - ends[:, 0], ends[:, 1]
    middle = int(at[len(at) // 2])
    drift = _drift(at, difference) if at[-1] - at[0] > DRIFT_FROM_NS else 0.0
    level = difference - drift * (at - middle)
    offset = float(np.median(level))
    error = float(np.median(np.abs(level - offset)))
    return ClockOffset(rank=rank, offset_ns=round(offset), error_ns=round(error), drift=drift, at_ns=middle)


def _drift(at: NDArray[np.int64], difference: NDArray[np.int64]) -> float:
    """Return the slope between the medians of the first and the last third: single late ends do not move it."""
    third = -(-len(at) // 3)
    gained = np.median(difference[-third:]) - np.median(difference[:third])
    passed = np.median(at[-third:]) - np.median(at[:third])
    return float(gained / passed) if passed > 0 else 0.0


def _beyond(known: ClockOffset, further: ClockOffset) -> ClockOffset:
    """Return the offset from the first rank, of one that was measured against a known one."""
    of_known = known.offset_ns + known.drift * (further.at_ns - further.offset_ns - known.at_ns)
    return replace(
        further,
        offset_ns=further.offset_ns + round(of_known),
        error_ns=further.error_ns + known.error_ns,
        drift=further.drift + known.drift,
    )
