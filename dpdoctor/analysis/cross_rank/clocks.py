"""How far the ranks' clocks are apart, for drawing them on one axis. No figure is computed from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dpdoctor.analysis.cross_rank.columns import RankCalls
from dpdoctor.analysis.cross_rank.model import ClockOffset, CrossRankGroup

# Clocks of one job gain less than that on each other in shorter traces than the spread of a call's ends.
DRIFT_FROM_NS = 60_000_000_000


def clock_offsets(groups: Sequence[CrossRankGroup], ranks: Mapping[int, RankCalls]) -> tuple[ClockOffset, ...]:
    """Return the offset of every rank that shares calls with the first one, itself or over other ranks.

    A synchronising call ends on all ranks together, so the median difference of the ends is that of the clocks.
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
