"""Is it one rank, each in turn, every so often, or nobody, with the run's own noise in mind; and what made it late.

All ranks leave a synchronising call together. So the one with the shortest duration came last, that duration is the
transfer, and how much later than another one a rank came is how much shorter its call is (the definition of TraceLens
and of Kineto's TensorBoard plugin): no clocks are compared. That is added up per step, over all groups. Who computes
beside a call goes on meanwhile, and comes as early to the next one: that is one delay, seen in each call. So a rank is
no later in a step than others compute nothing in their calls for longer than it does.

The unit is the step, because the collectives of one step depend on each other. A run is judged from as many steps as
make a rank that is last in all of them by chance improbable. Who came last to most collectives is a fact for which one
step is enough, and no verdict on the steps that follow. A pause that a rank recorded beside its trace, of the garbage
collector say, shows in the trace as Python between operators: it holds no event of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count, pairwise

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dpdoctor import units
from dpdoctor.analysis.base.stats import MAD_TO_SIGMA, at_least
from dpdoctor.analysis.cross_rank.matching import Match, RankCalls, taken
from dpdoctor.analysis.cross_rank.model import (
    CameLast,
    CommonCalls,
    CrossRankGroup,
    Kind,
    LateStep,
    StepLateness,
    Stragglers,
)
from dpdoctor.records import Rank

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
    columns = [np.array([place[rank] for rank in group.ranks]) for group, _ in held]
    lateness, wait, exposed = np.zeros((3, len(steps), len(ranks)), np.int64)
    for (group, calls), of_group in zip(held, columns, strict=True):
        chosen, members = np.isin(calls.step, steps), [ranks[rank] for rank in group.ranks]
        cells = np.ix_(np.searchsorted(steps, calls.step[chosen]), of_group)
        np.add.at(lateness, cells, calls.lateness_ns[chosen])
        np.add.at(wait, cells, waited(calls, members)[chosen])
        np.add.at(exposed, cells, _exposed(calls, members)[chosen])
    return StepLateness(
        steps=steps,
        lateness_ns=_at_most_waited_for(lateness, exposed, columns),
        wait_ns=np.minimum(wait, _beyond_least(exposed, columns)),
        step_ns=_step_ns(held, ranks),
    )


def _exposed(calls: CommonCalls, ranks: Sequence[RankCalls]) -> NDArray[np.int64]:
    """Return int64[n, k]: how long each rank computed nothing in each call."""
    return taken(calls.rows, [rank.exposed_ns for rank in ranks])


def _at_most_waited_for(
    lateness: NDArray[np.int64], exposed: NDArray[np.int64], columns: Sequence[NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Return lateness no larger than how much longer than a rank the others of some group computed nothing."""
    least, most = np.zeros((2, *exposed.shape), np.int64)
    for of_group in columns:
        longer = np.rint(earlier_than_others(exposed[:, of_group])).astype(np.int64)
        least[:, of_group] = np.minimum(least[:, of_group], longer)
        most[:, of_group] = np.maximum(most[:, of_group], longer)
    return np.clip(lateness, least, most)


def _beyond_least(exposed: NDArray[np.int64], columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return how much longer a rank computed nothing than the one that did so least: for its transfers alone."""
    compared = np.isin(np.arange(exposed.shape[1]), np.concatenate([np.empty(0, np.int64), *columns]))
    least = np.min(exposed, axis=1, keepdims=True, where=compared, initial=np.iinfo(np.int64).max)
    beyond: NDArray[np.int64] = np.maximum(exposed - least, 0)
    return beyond


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
    """Return the median time from the last call of a step to that of the next with any, of the group with most steps.

    Where gradients are accumulated over steps of the profiler, only every so manieth has calls.
    """
    lengths: list[int] = []
    for group, calls in held:
        ends: dict[int, int] = {}
        of_calls = ranks[group.ranks[0]].end_ns[calls.rows[:, 0]]
        for step, end in zip(calls.step.tolist(), of_calls.tolist(), strict=True):
            ends[step] = max(end, ends.get(step, end))
        found = [ends[after] - ends[step] for step, after in pairwise(sorted(ends)) if step >= 0]
        lengths = max(lengths, found, key=len)
    return round(float(np.median(lengths))) if lengths else None


# A step is late when a rank comes later than this share of a step: half of where TraceML warns ...
LATE_SHARE = 0.05
# ... and than what the scheduler of the host's cores may take at any time.
FLOOR_NS = 1_000_000
# One rank in, or different ranks in, so many of the steps: a clear majority.
MOST = 0.6
# Some rank is always last: without one culprit it takes more of a step than hosts' jitter: where TraceML warns.
ROTATING_SHARE = 0.10
# That a rank is last so often by chance, any of them (binomial test, a step being one trial).
ALPHA = 0.01
# ... and where that is more than jitter: that somebody is late is no chance then, and who is known at 95%.
LARGE_ALPHA = 0.05
# Fewer steps are no pattern, however many ranks there are.
MIN_STEPS = 5
# Late steps at equal distances that make a period: four in a trace of twenty steps have one by chance in 1 of 85.
MIN_PERIODIC = 4
# What counts as one of them, of the latest: not the jitter between.
PERIODIC_SHARE = 0.5
# A single step stands out by this share of a step and so many robust standard deviations of the rank's lateness.
EVENT_SHARE = 0.25
EVENT_SIGMAS = 8.0
# ... and, where there is a pattern, is so many times as late as the pattern's steps.
BEYOND = 2.0

Cause = Callable[[int, list[int]], str | None]


class _Late(msgspec.Struct, frozen=True, kw_only=True):
    """The late steps: their numbers, who came last, by how much, all of one length."""

    step: NDArray[np.int64]
    rank: NDArray[np.int64]
    by_ns: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.step)

    def __getitem__(self, where: NDArray[np.bool_]) -> _Late:
        return _Late(step=self.step[where], rank=self.rank[where], by_ns=self.by_ns[where])


def find_stragglers(steps: StepLateness, ranks: tuple[int, ...], cause: Cause) -> Stragglers:
    """Return who keeps the others waiting; `cause` names what made a rank late in some steps."""
    num = len(steps.steps)
    if len(ranks) < 2 or steps.step_ns is None:
        reason = "no two whole steps with common calls are in the traces of two ranks"
        return Stragglers(kind="unknown", num_steps=num, reason=reason)
    late = _late(steps, ranks, steps.step_ns)
    needed = steps_needed(len(ranks))
    if len(late) and num < needed:
        return Stragglers(kind="unknown", num_late=len(late), num_steps=num, reason=too_few(needed, num))
    events = _events(steps, ranks, steps.step_ns, cause)
    large = late[late.by_ns >= ROTATING_SHARE * steps.step_ns]
    verdict = (
        _persistent(late, num, len(ranks), cause, ALPHA)
        or _periodic(late, cause)
        or _persistent(large, num, len(ranks), cause, LARGE_ALPHA)
        or _rotating(large, num)
        or _single(events)
        or Stragglers(kind="none")
    )
    return replace(verdict, num_late=len(late), num_steps=num, events=_beyond(events, verdict))


def too_few(needed: int, num_steps: int) -> str:
    """Return in a clause that this is no number of steps to judge from."""
    here = "1 is" if num_steps == 1 else f"{num_steps} are"
    return f"to tell a pattern from chance {units.count(needed, 'whole step')} are needed, {here} here"


def steps_needed(num_ranks: int) -> int:
    """Return in how many steps a rank must be last, in all of them, for that to be no chance."""
    return next(num for num in count(MIN_STEPS) if _by_chance(num, num, num_ranks) < ALPHA)


def _by_chance(num_last: int, num_steps: int, num_ranks: int) -> float:
    """Return how probable it is that any of the ranks is last so often if each is as likely to be."""
    return num_ranks * at_least(num_last, num_steps, num_ranks)


def _late(steps: StepLateness, ranks: tuple[int, ...], step_ns: int) -> _Late:
    latest = steps.lateness_ns.argmax(axis=1) if len(steps.steps) else np.empty(0, np.int64)
    by = steps.lateness_ns[np.arange(len(latest)), latest]
    every = _Late(step=steps.steps, rank=np.array(ranks)[latest], by_ns=by)
    return every[by >= max(FLOOR_NS, LATE_SHARE * step_ns)]


def _persistent(late: _Late, num_steps: int, num_ranks: int, cause: Cause, alpha: float) -> Stragglers | None:
    if not len(late):
        return None
    numbers, times = np.unique(late.rank, return_counts=True)
    rank, most = int(numbers[times.argmax()]), int(times.max())
    if most < MOST * num_steps or _by_chance(most, num_steps, num_ranks) >= alpha:
        return None
    own = late[late.rank == rank]
    # Every so manieth step may be the only one with calls.
    period = _period(own)
    return _verdict("persistent", own, cause) if period is None else _verdict("periodic", own, cause, period)


def _periodic(late: _Late, cause: Cause) -> Stragglers | None:
    if not len(late):
        return None
    large = late[late.by_ns >= PERIODIC_SHARE * late.by_ns.max()]
    period = _period(large)
    return None if len(large) < MIN_PERIODIC or period is None else _verdict("periodic", large, cause, period)


def _period(late: _Late) -> int | None:
    """Return the distance of late steps; None: they follow each other, or at several distances."""
    distances = set(np.diff(late.step).tolist())
    return distances.pop() if len(distances) == 1 and distances != {1} else None


def _rotating(large: _Late, num_steps: int) -> Stragglers | None:
    return _verdict("rotating", large, None) if len(large) and len(large) >= MOST * num_steps else None


def _single(events: tuple[LateStep, ...]) -> Stragglers | None:
    if not events:
        return None
    ranks, causes = {event.rank for event in events}, {event.cause for event in events}
    return Stragglers(
        kind="single",
        rank=ranks.pop() if len(ranks) == 1 else None,
        lateness_ns=round(float(np.median([event.lateness_ns for event in events]))),
        times=len({event.step for event in events}),
        cause=causes.pop() if len(causes) == 1 else None,
    )


def _beyond(events: tuple[LateStep, ...], verdict: Stragglers) -> tuple[LateStep, ...]:
    """Return the events that are no part of the pattern."""
    if verdict.kind == "single" or verdict.lateness_ns is None:
        return events
    return tuple(event for event in events if event.lateness_ns >= BEYOND * verdict.lateness_ns)


def _verdict(kind: Kind, late: _Late, cause: Cause | None, period: int | None = None) -> Stragglers:
    """The culprit and its cause are named where all these steps have one and the same."""
    ranks = set(late.rank.tolist())
    rank = ranks.pop() if len(ranks) == 1 and cause is not None else None
    return Stragglers(
        kind=kind,
        rank=rank,
        lateness_ns=round(float(np.median(late.by_ns))),
        times=len(late),
        period=period,
        cause=None if rank is None or cause is None else cause(rank, late.step.tolist()),
    )


def _events(steps: StepLateness, ranks: tuple[int, ...], step_ns: int, cause: Cause) -> tuple[LateStep, ...]:
    """Return the steps that stand out among those of the same rank."""
    if not len(steps.steps):
        return ()
    above = steps.lateness_ns - np.median(steps.lateness_ns, axis=0)
    sigma = MAD_TO_SIGMA * np.median(np.abs(above), axis=0)
    out = above >= np.maximum(max(FLOOR_NS, EVENT_SHARE * step_ns), EVENT_SIGMAS * sigma)
    return tuple(
        LateStep(
            step=(step := int(steps.steps[row])),
            rank=(rank := ranks[column]),
            lateness_ns=int(steps.lateness_ns[row, column]),
            cause=cause(rank, [step]),
        )
        for row, column in zip(*(index.tolist() for index in np.nonzero(out)), strict=True)
    )


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
    """Return float64[n]: how long the median of those who did not come last waited and computed nothing.

    Overlapping calls wait once.
    """
    wait = np.minimum(waited(calls, ranks), _exposed(calls, ranks))
    return np.asarray(np.median(np.sort(wait, axis=1)[:, 1:], axis=1))


def _span_ns(groups: Sequence[CrossRankGroup], calls: RankCalls) -> int:
    """Return the time from the first common call of a rank to the end of the last."""
    rows = [g.calls.rows[:, g.ranks.index(calls.rank)] for g in groups if g.calls is not None and calls.rank in g.ranks]
    every = np.concatenate(rows)
    return int(calls.end_ns[every].max() - calls.begin_ns[every].min()) if len(every) else 0


# Kinds of EventRecord during which a rank does not train.
KINDS = ("gc", "checkpoint", "compile", "evaluation", "inference")


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a rank; times on the axis of its trace."""

    kind: str
    begin_ns: int
    end_ns: int


def pauses_of(rank: Rank) -> tuple[Pause, ...]:
    """Return the rank's pauses; none where it has no trace, or did not say how its clocks are related."""
    if rank.digest is None or rank.record is None or rank.record.clock is None:
        return ()
    monotonic_ns, unix_ns = rank.record.clock
    shift = unix_ns - monotonic_ns - rank.digest.base_ns
    return tuple(
        Pause(kind=event.kind, begin_ns=event.at_ns + shift, end_ns=event.at_ns + event.duration_ns + shift)
        for event in rank.events
        if event.kind in KINDS
    )


def pause_behind(
    groups: Sequence[CrossRankGroup], calls: RankCalls, pauses: Sequence[Pause], steps: Collection[int]
) -> str | None:
    """Return the kind of pause that made one rank late in these steps; None where none covers enough of its lateness.

    What counts is the time that pauses of a kind take of the rank's own segments before the calls to which it came
    late, as far as it was late. `calls` are the rank's.
    """
    explained: Counter[str] = Counter()
    total = 0
    for row, late_ns in _late_calls(groups, calls.rank, steps):
        total += late_ns
        end = int(calls.begin_ns[row])
        begin = end - round(float(calls.segment_ns[row]))
        for kind in {pause.kind for pause in pauses}:
            inside = _covered((pause for pause in pauses if pause.kind == kind), begin, end)
            explained[kind] += min(late_ns, inside)
    kind, most = max(sorted(explained.items()), key=lambda item: item[1], default=("", 0))
    return kind if total and most >= COVERAGE * total else None


def _late_calls(groups: Sequence[CrossRankGroup], rank: int, steps: Collection[int]) -> Iterable[tuple[int, int]]:
    """Yield the row and the lateness of every call in these steps to which the rank came late."""
    for group in groups:
        if group.calls is None or rank not in group.ranks:
            continue
        column = group.ranks.index(rank)
        late = group.calls.lateness_ns[:, column]
        for call in np.flatnonzero(np.isin(group.calls.step, list(steps)) & (late > 0)).tolist():
            yield int(group.calls.rows[call, column]), int(late[call])


def _covered(pauses: Iterable[Pause], begin: int, end: int) -> int:
    """Return how much of [begin, end) lies in pauses of one kind, which follow each other."""
    return sum(max(0, min(end, pause.end_ns) - max(begin, pause.begin_ns)) for pause in pauses)
