"""How fast each rank is by itself: in the windows without communication no rank waits for another."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median

from dpdoctor.analysis import PHASES, Figure, Launch, stats
from dpdoctor.analysis.ablation import pairs
from dpdoctor.analysis.windows import NS, RankWindow, Window
from dpdoctor.rules._base import Case
from dpdoctor.rules._communication import ARM
from dpdoctor.rules._steps import events_by_step, launches

GC = "gc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The rank that is slowest by itself.

    Attributes:
        excess: its step beyond the median of the others', as a share of the mode's full step.
        excess_s: the same in seconds per step.
        parts: what of excess_s lies in each phase of its host, and in pauses of its garbage collector (`gc`), which are
            part of a phase.
    """

    rank: int
    excess: Figure
    excess_s: float
    parts: dict[str, float]


def pace(case: Case) -> Pace | None:
    """Return the rank that is slowest by itself; None: there are no windows without communication, or one rank."""
    found = [(launch, *pair) for launch in launches(case) for pair in pairs(launch, ARM)]
    if not found or len(found[0][2].ranks) < 2:
        return None
    own = [[_seconds(rank) for rank in without.ranks] for _, _, without in found]
    slowest = max(range(len(own[0])), key=lambda rank: fmean(seconds[rank] for seconds in own))
    excess = [
        (_beyond(seconds, slowest), full.seconds_per_step) for seconds, (_, full, _) in zip(own, found, strict=True)
    ]
    parts = [_parts(launch, without, slowest) for launch, _, without in found]
    return Pace(
        rank=found[0][0].ranks[slowest].index,
        excess=stats.ratio_of_totals(excess, "ratio"),
        excess_s=fmean(seconds for seconds, _ in excess),
        parts={name: fmean(part[name] for part in parts) for name in parts[0]},
    )


def _parts(launch: Launch, window: Window, slowest: int) -> dict[str, float]:
    parts = {name: _beyond([r.phase_s(name) / len(r.steady) for r in window.ranks], slowest) for name in PHASES}
    pauses = [_gc_s(launch, index, rank) for index, rank in enumerate(window.ranks)]
    return {**parts, GC: _beyond(pauses, slowest)}


def _gc_s(launch: Launch, index: int, window: RankWindow) -> float:
    paused = events_by_step(launch.ranks[index], GC)
    return sum(paused.get(step.step, 0) for step in window.steady) * NS / len(window.steady)


def _seconds(window: RankWindow) -> float:
    return window.steady_s / len(window.steady)


def _beyond(values: list[float], which: int) -> float:
    """Return one value less the median of the others."""
    return values[which] - median(values[:which] + values[which + 1 :])
