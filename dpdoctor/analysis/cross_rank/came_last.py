"""Who came last to most collectives: a fact for which one step is enough, and no verdict on the steps that follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dpdoctor.analysis.cross_rank.columns import RankCalls
from dpdoctor.analysis.cross_rank.model import CameLast, CommonCalls, CrossRankGroup
from dpdoctor.analysis.cross_rank.steps import waited
from dpdoctor.analysis.cross_rank.stragglers import FLOOR_NS, LATE_SHARE, MOST

# What lies closer together came at the same time: traces have microseconds.
RESOLUTION_NS = 1_000
# Once is no "most".
LEAST_TIMES = 2


def came_last(groups: Sequence[CrossRankGroup], ranks: Mapping[int, RankCalls]) -> CameLast | None:
    """Return the rank that came last to most of its collectives and kept the others waiting for a part of the time.

    None: there is no such rank, or no call was found again on all ranks of a group.
    """
    times: Counter[int] = Counter()
    of: Counter[int] = Counter()
    waited_ns: Counter[int] = Counter()
    for group, calls in ((group, group.calls) for group in groups if group.calls is not None):
        is_last, waited_for = _last(calls), _median_wait(calls, [ranks[rank] for rank in group.ranks])
        for column, rank in enumerate(group.ranks):
            times[rank] += int(is_last[:, column].sum())
            of[rank] += len(calls)
            waited_ns[rank] += int(waited_for[is_last[:, column] & calls.judged].sum())
    for rank, number in times.most_common():
        enough_ns = max(FLOOR_NS, LATE_SHARE * _span_ns(groups, ranks[rank]))
        if number >= max(LEAST_TIMES, MOST * of[rank]) and waited_ns[rank] >= enough_ns:
            return CameLast(rank=rank, times=number, of=of[rank], waited_ns=waited_ns[rank])
    return None


def _last(calls: CommonCalls) -> NDArray[np.bool_]:
    """Return bool[n, k]: who came last to each call; nobody where two came at the same time."""
    ordered = np.sort(calls.wait_ns, axis=1)
    is_clear = ordered[:, 1] - ordered[:, 0] > RESOLUTION_NS
    return np.asarray((calls.wait_ns == 0) & is_clear[:, None])


def _median_wait(calls: CommonCalls, ranks: Sequence[RankCalls]) -> NDArray[np.float64]:
    """Return float64[n]: how long the median of those who did not come last waited; overlapping calls wait once."""
    return np.asarray(np.median(np.sort(waited(calls, ranks), axis=1)[:, 1:], axis=1))


def _span_ns(groups: Sequence[CrossRankGroup], calls: RankCalls) -> int:
    """Return the time from the first common call of a rank to the end of the last."""
    rows = [g.calls.rows[:, g.ranks.index(calls.rank)] for g in groups if g.calls is not None and calls.rank in g.ranks]
    every = np.concatenate(rows)
    return int(calls.end_ns[every].max() - calls.begin_ns[every].min()) if len(every) else 0
