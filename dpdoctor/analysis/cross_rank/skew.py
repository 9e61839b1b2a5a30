"""How much of a collective is transfer and how much is waiting, and for whom: no clocks compared.

All ranks leave a synchronising call together. So the one with the shortest duration came last, that duration is the
transfer, and how much later than another one a rank came is how much shorter its call is (the
definition of TraceLens and of Kineto's TensorBoard plugin).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dpdoctor.analysis.cross_rank.columns import RankCalls, taken
from dpdoctor.analysis.cross_rank.matching import Match
from dpdoctor.analysis.cross_rank.model import CommonCalls

# A segment's main cause stands for the lateness only where the lateness is so much of it.
MOSTLY = 0.5

Times = NDArray[np.float64]


def common_calls(match: Match, ranks: Sequence[RankCalls]) -> CommonCalls:
    """Return the synchronising calls of a matched group; `ranks` are its members in the match's order."""
    rows = match.rows[ranks[0].synchronising[match.rows[:, 0]]]
    begin, end = taken(rows, [rank.begin_ns for rank in ranks]), taken(rows, [rank.end_ns for rank in ranks])
    segment = taken(rows, [rank.segment_ns for rank in ranks])
    duration = end - begin
    last = duration.argmin(axis=1)
    transfer = duration.min(axis=1)
    judged = np.logical_and.reduce(np.isfinite(segment), axis=1)
    lateness = _charged(earlier_than_others(alone(begin, end)), -earlier_than_others(segment))
    return CommonCalls(
        rows=rows,
        step=ranks[0].step[rows[:, 0]],
        judged=judged,
        transfer_ns=transfer,
        wait_ns=duration - transfer[:, None],
        last=np.array(match.ranks, np.int64)[last],
        cause=tuple(_causes(rows, last, lateness, segment, ranks)),
        lateness_ns=np.where(judged[:, None], np.rint(lateness), 0).astype(np.int64),
    )


def alone(begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n, k]: durations without what overlaps with earlier calls of the group, so that a rank that is
    waited for by several calls at once is waited for once.
    """
    free = np.full_like(begin, np.iinfo(np.int64).min)
    free[1:] = np.maximum.accumulate(end, axis=0)[:-1]
    return np.maximum(0, end - np.maximum(begin, free))


def earlier_than_others(values: NDArray[np.int64] | Times) -> Times:
    """Return float64[n, k]: the median of the others' values minus each one's own."""
    ordered = np.sort(values, axis=1)
    place = np.argsort(np.argsort(values, axis=1), axis=1)
    others = values.shape[1] - 1
    low, high = (others - 1) // 2, others // 2
    # Without the one at `place`, those from there on move down by one.
    below = np.take_along_axis(ordered, low + (place <= low), axis=1)
    above = np.take_along_axis(ordered, high + (place <= high), axis=1)
    return np.asarray((below + above) / 2 - values, np.float64)


def _charged(late: Times, longer: Times) -> Times:
    """Return the lateness that a rank's own segment before the call accounts for.

    The rest is inherited: the rank was itself kept waiting, in another group. The smaller of the two where they have
    one sign, else nothing.
    """
    same = np.sign(late) == np.sign(longer)
    return np.where(same, np.sign(late) * np.minimum(np.abs(late), np.abs(longer)), 0)


def _causes(
    rows: NDArray[np.int64], last: NDArray[np.int64], lateness: Times, segment: Times, ranks: Sequence[RankCalls]
) -> Iterator[str | None]:
    for call, column in enumerate(last.tolist()):
        explains = lateness[call, column] > MOSTLY * segment[call, column]
        yield ranks[column].cause[rows[call, column]] if explains else None
