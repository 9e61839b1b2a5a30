"""What ranks differ by, so that others wait: one is slow by itself, or trains on larger batches.

How long a step of each takes by itself is seen in the windows without communication, where no rank waits for another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.ablation import pairs
from dpdoctor.analysis.base.launches import NS, LaunchFacts, RankWindow, Window
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.traces import Traces
from dpdoctor.analysis.breakdown import part_share
from dpdoctor.analysis.interruptions import events_by_step
from dpdoctor.analysis.machine import slower_cores
from dpdoctor.analysis.weighing import COVERAGE, SMALL, above_zero, is_more_exact, main_part
from dpdoctor.records import PHASES, StepRecord

GC, QUEUE, CORE = "gc", "queue", "core"
# On a GPU the host's other phases last as long as it takes to queue work or, wherever it asks for a value or copies
# from pageable memory, until the device is done: a slow device makes them long, too.
_OF_HOST = ("data_wait",)
# A launch, the full window of a round and the one without communication.
_Round = tuple[LaunchFacts, Window, Window]


class SlowRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that is slow by itself.

    Attributes:
        excess: its step beyond the median of the others', as a share of the mode's full step.
        excess_s: the same in seconds per step.
        parts: what of the excess lies in each phase of its host, and in pauses of its garbage collector (`gc`), waiting
            for a core (`queue`, where the kernel tells) and a core that computes more slowly (`core`, where that was
            tried), which are parts of phases; shares of the full step. Phases in which the host queues work of a
            device, or waits for it, are left out.
        running: the same of each phase without the waiting for a core, which is taken to be spread evenly over a step.
        certain: the sum of the phases in which the rank is slower by more than chance; 0 where there is none.
    """

    rank: int
    excess: Figure
    excess_s: float
    parts: dict[str, Figure]
    running: dict[str, Figure]
    certain: Figure

    @property
    def waits(self) -> bool:
        """Return whether it waits for a core for longer than the others, by more than chance."""
        queue = self.parts.get(QUEUE)
        return queue is not None and above_zero(queue) and (queue.value or 0.0) >= SMALL

    @property
    def cause(self) -> str | None:
        """The part that most of the excess lies in; None: no single one, or nothing is certain."""
        excess = self.proved.value
        if not excess:
            return None
        values = {name: part.value or 0.0 for name, part in self.parts.items()}
        # These lie inside of a phase, and say more than it does.
        inside = {name: values.pop(name) for name in (QUEUE, GC, CORE) if name in values}
        if CORE in inside and not above_zero(self.parts[CORE]):
            del inside[CORE]  # a millisecond of each window tells less than all of its steps
        return main_part(inside, excess) or main_part(values, excess)

    @property
    def excess_running(self) -> Figure:
        """What is left of what is proved without waiting for a core, as a share of the full step."""
        queue = self.parts.get(QUEUE)
        if queue is None or queue.value is None:
            return self.proved
        return stats.combination([(1.0, self.proved), (-1.0, queue)], "ratio")

    @property
    def cause_running(self) -> str | None:
        """The phase that most of `excess_running` lies in; None: no single one, or it does not wait for a core."""
        certain = {name: part.value or 0.0 for name, part in self.running.items() if above_zero(part)}
        return main_part(certain, self.excess_running.value or 0.0) if self.waits else None

    @property
    def proved(self) -> Figure:
        """By how much the rank is slower for certain, as a share of the full step; 0 where that is not certain.

        The whole step's excess or, where they agree and are known more exactly, the certain phases': the other phases
        last longer here or there by chance, which widens the whole step's interval. A rank whose whole step came out
        no longer than the others' is not called slow for a phase of it.
        """
        is_proved, certain = above_zero(self.excess), self.certain
        # One phase of several looks certain by chance more often than the whole step does.
        least = 0.0 if is_proved else SMALL
        if self.excess_s > 0 and is_more_exact(certain, self.excess) and (certain.low or 0.0) > least:
            return certain
        return self.excess if is_proved else Figure(value=0.0, n=self.excess.n, unit="ratio")


def slowest_rank(launches: Sequence[LaunchFacts], ablation: str, *, on_gpu: bool) -> SlowRank | None:
    """Return the rank that is slowest by itself; None: `ablation`, without communication, has no windows, or one rank.

    `on_gpu`: the ranks compute on GPUs, so that phases in which a host queues work or waits for it tell nothing.
    """
    rounds = [(launch, *pair) for launch in launches for pair in pairs(launch, ablation)]
    if not rounds or len(rounds[0][2].ranks) < 2:
        return None
    full_s = [full.seconds_per_step for _, full, _ in rounds]
    names = _OF_HOST if on_gpu else PHASES
    whole, phases = _beyond(rounds, _whole_s), {name: _beyond(rounds, partial(_phase_s, name)) for name in names}
    inside, running = {GC: _gc(rounds)}, {}
    if all(rank.window.queued_ns is not None for _, _, without in rounds for rank in without.ranks):
        inside[QUEUE] = _beyond(rounds, _queued_s)
        running = {name: _beyond(rounds, partial(_running_s, name)) for name in names}
    factors = [found for _, _, without in rounds if (found := slower_cores(without))]
    if not on_gpu and len(factors) == len(rounds):
        inside[CORE] = [_by_core(without, found) for (_, _, without), found in zip(rounds, factors, strict=True)]
    paces = [
        _of_rank(
            index,
            full_s,
            [ranks[place] for ranks in whole],
            phases=_of_place(place, phases),
            inside=_of_place(place, inside),
            running=_of_place(place, running),
        )
        for place, index in enumerate(rank.index for rank in rounds[0][0].ranks)
    ]
    return max(paces, key=lambda found: (found.proved.value or 0.0, found.excess.value or 0.0))


def _of_place(place: int, seconds: Mapping[str, list[list[float]]]) -> dict[str, list[float]]:
    """Return of each part what one rank has in each round."""
    return {name: [ranks[place] for ranks in rounds] for name, rounds in seconds.items()}


def _of_rank(
    rank: int,
    full_s: list[float],
    whole: list[float],
    *,
    phases: dict[str, list[float]],
    inside: dict[str, list[float]],
    running: dict[str, list[float]],
) -> SlowRank:
    """Return how much slower a rank is, given of each round its seconds per step beyond the others' median."""

    def share(seconds: list[float]) -> Figure:
        return stats.ratio_of_totals(list(zip(seconds, full_s, strict=True)), "ratio", signed=True)

    parts = {name: share(seconds) for name, seconds in {**phases, **inside}.items()}
    certain = [seconds for name, seconds in phases.items() if above_zero(parts[name])]
    return SlowRank(
        rank=rank,
        excess=share(whole),
        excess_s=sum(whole) / len(whole),
        parts=parts,
        running={name: share(seconds) for name, seconds in running.items()},
        certain=share([sum(found[place] for found in certain) for place in range(len(full_s))]),
    )


def _beyond(rounds: list[_Round], seconds: Callable[[RankWindow], float]) -> list[list[float]]:
    """Return of each round each rank's seconds per step beyond the median of the other ranks'."""
    return [beyond_others([seconds(part) / len(part.steady) for part in window.ranks]) for _, _, window in rounds]


def _gc(rounds: list[_Round]) -> list[list[float]]:
    """Return what `_beyond` does, of pauses of the garbage collector."""
    paused = {id(launch): [events_by_step(rank, GC) for rank in launch.ranks] for launch, _, _ in rounds}
    return [
        beyond_others(
            [
                sum(of_rank.get(step.step, 0) for step in part.steady) * NS / len(part.steady)
                for of_rank, part in zip(paused[id(launch)], window.ranks, strict=True)
            ]
        )
        for launch, _, window in rounds
    ]


def _whole_s(window: RankWindow) -> float:
    return window.steady_s


def _queued_s(window: RankWindow) -> float:
    return (window.window.queued_ns or 0) * NS * len(window.steady) / len(window.counted)


def _by_core(window: Window, factors: list[float]) -> list[float]:
    """Return the seconds per step that each rank would not need if its core were as fast as the others'."""
    return [
        (rank.steady_s - _queued_s(rank)) / len(rank.steady) * (1 - 1 / factor)
        for rank, factor in zip(window.ranks, factors, strict=True)
    ]


def _phase_s(name: str, window: RankWindow) -> float:
    return window.phase_s(name)


def _running_s(name: str, window: RankWindow) -> float:
    return window.phase_s(name) * (1 - min(1.0, _queued_s(window) / window.steady_s))


def beyond_others(values: list[float]) -> list[float]:
    """Return each value less the median of the others; of thousands of ranks, too, in no time."""
    order = sorted(values)
    middle, is_odd = divmod(len(values) - 1, 2)
    found = []
    for value in values:
        place = bisect_left(order, value)
        # Of the others: what comes after this one moves up by one place.
        upper = order[middle if middle < place else middle + 1]
        lower = upper if is_odd else order[middle - 1 if middle - 1 < place else middle]
        found.append(value - (lower + upper) / 2)
    return found


_FORWARD, _BACKWARD = PHASES.index("forward"), PHASES.index("backward")
_Array = NDArray[np.float64]
# Share of the steps in which one rank has the largest batch, for it to be that rank's fault.
PERSISTENT = 0.6
# Of the difference between forward passes, what sizes have to explain before they are taken to be the cause.
MOSTLY = 0.5


class Unevenness(msgspec.Struct, frozen=True, kw_only=True):
    """What ranks with smaller batches wait for the one with the largest.

    Attributes:
        share: of the step; the mean batch on every rank would save it.
        behind: share of the step by which the rank with the largest batch comes after the median of the others.
        explained: how much of the difference between forward times the sizes explain, beside how much longer a rank
            takes whatever its size; None: on GPUs the host's clock does not time forward, and the work is taken to grow
            with the size.
        sizes: mean elements (or samples) of a step's batch, by rank.
        persistent: the same rank has the largest one in nearly every step.
    """

    share: Figure
    behind: float
    explained: float | None
    sizes: tuple[float, ...]
    unit: str
    persistent: bool

    @property
    def is_cause(self) -> bool:
        """Whether sizes explain most of what forward passes differ by, or nothing told."""
        return self.explained is None or self.explained >= MOSTLY

    def explains(self, late: float) -> bool:
        """Return whether unequal batches explain enough of the share of a step by which a rank is late."""
        return self.is_cause and self.behind >= COVERAGE * late > 0


def unevenness(
    windows: Sequence[tuple[LaunchFacts, Window]], world_size: int, traces: Traces, *, on_gpu: bool
) -> Unevenness | None:
    """Return what unequal batches cost; None: one rank, nothing measured, or all batches of each step are alike."""
    aligned = [of_all for _, window in windows if (of_all := _aligned(window))]
    if world_size < 2 or not aligned:
        return None
    unit = "element" if all(s.elements for of_all in aligned for row in of_all for s in row) else "sample"
    steps = [known for of_all in aligned if (known := _known(of_all, unit))]
    if not steps:
        return None
    sizes = [_batch_sizes(window, unit) for window in steps]
    every = np.concatenate(sizes)
    if np.all(every == every[:, :1]):
        return None
    share, explained = _cost_on_device(traces, sizes) if on_gpu else _cost_on_host(steps, sizes)
    excess, behind = float(_excess(every).sum()), float((every.max(axis=1) - _median_of_others(every)).sum())
    largest = np.bincount(every.argmax(axis=1)).max() / len(every)
    return Unevenness(
        share=share,
        behind=(share.value or 0.0) * behind / excess,
        explained=explained,
        sizes=tuple(every.mean(axis=0).tolist()),
        unit=unit,
        persistent=bool(largest >= PERSISTENT),
    )


def _aligned(window: Window) -> list[tuple[StepRecord, ...]]:
    """Return the steady steps that all ranks have, one entry per step with every rank's record."""
    by_rank = [{step.step: step for step in part.steady} for part in window.ranks]
    common = sorted(set.intersection(*(set(steps) for steps in by_rank)))
    return [tuple(steps[number] for steps in by_rank) for number in common]


def _known(steps: list[tuple[StepRecord, ...]], unit: str) -> list[tuple[StepRecord, ...]]:
    """Return the steps in which every rank's batch has a size; one of 0 could not be told."""
    return [row for row in steps if all(_batch_size(step, unit) for step in row)]


def _batch_sizes(steps: list[tuple[StepRecord, ...]], unit: str) -> _Array:
    return np.asarray([[_batch_size(step, unit) for step in row] for row in steps], dtype=float)


def _batch_size(step: StepRecord, unit: str) -> int:
    return step.elements if unit == "element" else step.samples_entered


def _cost_on_host(steps: list[list[tuple[StepRecord, ...]]], sizes: list[_Array]) -> tuple[Figure, float | None]:
    """Return the cost from forward times, in which ranks do not wait for each other, and backward in proportion.

    Backward's own share of the work is read from the rank that waits least in it.
    """
    forward = [_phase_times(window, _FORWARD) for window in steps]
    backward = np.concatenate([_phase_times(window, _BACKWARD) for window in steps])
    times, every = np.concatenate(forward), np.concatenate(sizes)
    if np.any(times <= 0):
        return stats.unknown("ratio", "forward was not timed"), None
    slope = max(0.0, float(np.polyfit(every.ravel(), times.ravel(), 1)[0]))
    whole = 1 + float(np.median((backward / times).min(axis=1)))
    lost = [slope * whole * float(_excess(window).sum()) for window in sizes]
    share = stats.ratio_of_totals([(s, _seconds(w)) for s, w in zip(lost, steps, strict=True)], "ratio")
    by_size = slope * float(_excess(every).mean())
    # Of the ranks' means: single steps vary for other reasons, too.
    otherwise = float(_excess((times - slope * every).mean(axis=0, keepdims=True)).mean())
    return share, by_size / (by_size + otherwise) if by_size > 0 else 0.0


def _cost_on_device(traces: Traces, sizes: list[_Array]) -> tuple[Figure, float | None]:
    computing, reason = part_share(traces, "compute"), traces.why_unknown
    if computing.value is None or reason is not None:
        nothing = "without a trace it is not known how much of a step the device computes"
        return stats.unknown("ratio", reason or (computing.reason if traces else None) or nothing), None
    lost = [(computing.value * float((_excess(window) / window.max(axis=1)).sum()), len(window)) for window in sizes]
    return stats.ratio_of_totals(lost, "ratio"), None


def _seconds(steps: list[tuple[StepRecord, ...]]) -> float:
    """Return how long these steps took the rank that they took longest."""
    by_rank = zip(*steps, strict=True)
    return NS * float(max(sum(step.duration_ns for step in of_rank) for of_rank in by_rank))


def _phase_times(steps: list[tuple[StepRecord, ...]], phase: int) -> _Array:
    rows = [[s.phases_ns[phase] * NS for s in row] for row in steps]
    return np.asarray(rows, dtype=float).reshape(len(steps), -1)


def _excess(of: _Array) -> _Array:
    """Return by how much the largest of each row exceeds the row's mean."""
    excess: _Array = of.max(axis=1) - of.mean(axis=1)
    return excess


def _median_of_others(of: _Array) -> _Array:
    """Return for each row the median without its largest value."""
    others: _Array = np.median(np.sort(of, axis=1)[:, :-1], axis=1)
    return others
