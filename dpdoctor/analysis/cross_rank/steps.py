"""Lateness, waiting and blame per step, over all groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dpdoctor.analysis.cross_rank.columns import RankCalls, taken
from dpdoctor.analysis.cross_rank.model import CommonCalls, CrossRankGroup, StepLateness
from dpdoctor.analysis.cross_rank.skew import alone

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
