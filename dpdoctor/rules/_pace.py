"""How fast each rank is by itself: in the windows without communication no rank waits for another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from dpdoctor.analysis import PHASES, Figure, Launch, stats
from dpdoctor.analysis.ablation import pairs
from dpdoctor.analysis.windows import NS, RankWindow, Window
from dpdoctor.rules._base import SMALL, Case, above_zero, is_more_exact, main_part
from dpdoctor.rules._communication import ARM
from dpdoctor.rules._steps import events_by_step, launches
from dpdoctor.rules._traced import on_gpu

GC = "gc"
# On a GPU the host's forward and backward last as long as it takes to queue work, or until there is room.
_QUEUED = ("forward", "backward", "optimizer")
# A launch, the full window of a round and the one without communication.
_Round = tuple[Launch, Window, Window]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A rank that is slow by itself.

    Attributes:
        excess: its step beyond the median of the others', as a share of the mode's full step.
        excess_s: the same in seconds per step.
        parts: what of the excess lies in each phase of its host, and in pauses of its garbage collector (`gc`), which
            are part of a phase; shares of the full step. Phases in which the host only queues work are left out.
        certain: the sum of the phases in which the rank is slower by more than chance; 0 where there is none.
    """

    rank: int
    excess: Figure
    excess_s: float
    parts: dict[str, Figure]
    certain: Figure

    @property
    def cause(self) -> str | None:
        """The part that most of the excess lies in; None: no single one, or nothing is certain."""
        excess = self.proved.value
        if not excess:
            return None
        values = {name: part.value or 0.0 for name, part in self.parts.items()}
        # Pauses lie inside of a phase, and say more than it does.
        return main_part({GC: values.pop(GC)}, excess) or main_part(values, excess)

    @property
    def proved(self) -> Figure:
        """By how much the rank is slower for certain, as a share of the full step; 0 where that is not certain.

        The whole step's excess or, where they agree and are known more exactly, the certain phases': the other phases
        last longer here or there by chance, which widens the whole step's interval.
        """
        is_proved, certain = above_zero(self.excess), self.certain
        # One phase of several looks certain by chance more often than the whole step does.
        least = 0.0 if is_proved else SMALL
        if is_more_exact(certain, self.excess) and (certain.low or 0.0) > least:
            return certain
        return self.excess if is_proved else Figure(value=0.0, n=self.excess.n, unit="ratio")


def pace(case: Case) -> Pace | None:
    """Return the rank that is slowest by itself; None: there are no windows without communication, or one rank."""
    rounds = [(launch, *pair) for launch in launches(case) for pair in pairs(launch, ARM)]
    if not rounds or len(rounds[0][2].ranks) < 2:
        return None
    paces = [_of_rank(rounds, rank, with_queued=not on_gpu(case)) for rank in range(len(rounds[0][2].ranks))]
    return max(paces, key=lambda found: (found.proved.value or 0.0, found.excess.value or 0.0))


def _of_rank(rounds: list[_Round], rank: int, *, with_queued: bool) -> Pace:
    def beyond(seconds: Callable[[Launch, int, RankWindow], float]) -> list[tuple[float, float]]:
        """Return of each round the seconds per step beyond the median of the other ranks', and those of a full step."""
        found = []
        for launch, full, window in rounds:
            per_step = [seconds(launch, index, part) / len(part.steady) for index, part in enumerate(window.ranks)]
            found.append((_beyond(per_step, rank), full.seconds_per_step))
        return found

    whole = beyond(_whole_s)
    names = [name for name in PHASES if with_queued or name not in _QUEUED]
    phases = {name: beyond(partial(_phase_s, name)) for name in names}
    parts = {name: stats.ratio_of_totals(found, "ratio") for name, found in {**phases, GC: beyond(_gc_s)}.items()}
    certain = [phases[name] for name in names if above_zero(parts[name])]
    return Pace(
        rank=rounds[0][0].ranks[rank].index,
        excess=stats.ratio_of_totals(whole, "ratio"),
        excess_s=sum(seconds for seconds, _ in whole) / len(whole),
        parts=parts,
        certain=stats.ratio_of_totals(
            [(sum(part[index][0] for part in certain), full_s) for index, (_, full_s) in enumerate(whole)], "ratio"
        ),
    )


def _whole_s(_launch: Launch, _index: int, window: RankWindow) -> float:
    return window.steady_s


def _phase_s(name: str, _launch: Launch, _index: int, window: RankWindow) -> float:
    return window.phase_s(name)


def _gc_s(launch: Launch, index: int, window: RankWindow) -> float:
    paused = events_by_step(launch.ranks[index], GC)
    return sum(paused.get(step.step, 0) for step in window.steady) * NS


def _beyond(values: list[float], which: int) -> float:
    """Return one value less the median of the others."""
    return values[which] - median(values[:which] + values[which + 1 :])
