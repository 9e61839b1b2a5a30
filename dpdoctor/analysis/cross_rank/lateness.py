"""How much of a collective is transfer and how much is waiting, and for whom: no clocks compared.

All ranks leave a synchronising call together. So the one with the shortest duration came last, that duration is the
transfer, and how much later than another one a rank came is how much shorter its call is (the definition of TraceLens
and of Kineto's TensorBoard plugin). Added up per step, over all groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dpdoctor.analysis.cross_rank.columns import RankCalls, taken
from dpdoctor.analysis.cross_rank.matching import Match
from dpdoctor.analysis.cross_rank.model import CommonCalls, CrossRankGroup, StepLateness

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


# A cause is named where it explains at least this much of the lateness: TraceML's threshold.
COVERAGE = 0.8


def step_lateness(groups: Sequence[CrossRankGroup], ranks: Mapping[int, RankCalls]) -> StepLateness:
    """Return what the calls of all groups add up to in each step; `ranks` gives the columns of this order."""
    held = [(group, group.calls) for group in groups if group.calls is not None]
    steps = _judged_steps([calls for _, calls in held])
    place = {rank: column for column, rank in enumerate(ranks)}
    lateness, wait = np.zeros((2, len(steps), len(ranks)), np.int64)
    for group, calls in held:
        chosen = np.isin(calls.step, steps)
        members = np.array([place[rank] for rank in group.ranks])
        cells = np.ix_(np.searchsorted(steps, calls.step[chosen]), members)
        np.add.at(lateness, cells, calls.lateness_ns[chosen])
        np.add.at(wait, cells, waited(calls, [ranks[rank] for rank in group.ranks])[chosen])
    step_ns = _step_ns(held, ranks)
    return StepLateness(steps=steps, lateness_ns=lateness, wait_ns=wait, step_ns=step_ns)


def cause_of(groups: Sequence[CrossRankGroup], rank: int, steps: Collection[int]) -> str | None:
    """Return what made one rank late in these steps; None where no cause covers enough of its lateness."""
    explained: Counter[str] = Counter()
    total = 0
    for group in groups:
        if group.calls is None or rank not in group.ranks:
            continue
        late = np.maximum(0, group.calls.lateness_ns[:, group.ranks.index(rank)])
        for call in np.flatnonzero(np.isin(group.calls.step, list(steps)) & (late > 0)).tolist():
            total += int(late[call])
            cause = group.calls.cause[call]
            if cause is not None and group.calls.last[call] == rank:
                explained[cause] += int(late[call])
    cause, most = max(explained.items(), key=lambda item: item[1], default=("", 0))
    return cause if total and most >= COVERAGE * total else None


def _judged_steps(groups: Sequence[CommonCalls]) -> NDArray[np.int64]:
    """Return int64[s]: the steps in which every call is judged."""
    every = {step for calls in groups for step in calls.step.tolist()}
    unjudged = {step for calls in groups for step in calls.step[~calls.judged].tolist()}
    return np.array(sorted(every - unjudged - {-1}), np.int64)


def waited(calls: CommonCalls, ranks: Sequence[RankCalls]) -> NDArray[np.int64]:
    """Return int64[n, k]: the wait in each call, without what overlaps with earlier calls."""
    own = alone(taken(calls.rows, [r.begin_ns for r in ranks]), taken(calls.rows, [r.end_ns for r in ranks]))
    wait: NDArray[np.int64] = own - own.min(axis=1, keepdims=True)
    return wait


def _step_ns(held: Sequence[tuple[CrossRankGroup, CommonCalls]], ranks: Mapping[int, RankCalls]) -> int | None:
    """Return the median time from the last call of a step to that of the next, of the group that has most steps."""
    lengths: list[int] = []
    for group, calls in held:
        ends: dict[int, int] = {}
        of_calls = ranks[group.ranks[0]].end_ns[calls.rows[:, 0]]
        for step, end in zip(calls.step.tolist(), of_calls.tolist(), strict=True):
            ends[step] = max(end, ends.get(step, end))
        found = [ends[step + 1] - ends[step] for step in ends if step >= 0 and step + 1 in ends]
        lengths = max(lengths, found, key=len)
    return round(float(np.median(lengths))) if lengths else None
