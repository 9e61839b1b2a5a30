"""What each ablation gains: its windows against the full ones of the same rounds.

Windows of one round lie seconds apart, in shuffled order. So what drifts in the course of a run, such as a warming
processor or a neighbour on the machine, falls out of the differences. In windows of `unwatched` steps themselves take
turns, four by four, so that what changes within seconds does as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.launches import NS, LaunchFacts, Window
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.summary import AblationSummary
from dpdoctor.records import FULL, PHASES, StepRecord

NO_PAIRS = "no round has a complete window of it on every rank beside a full one"

# Of one round: seconds per step of the slowest rank, with nothing and with something switched off.
Pair = tuple[float, float]


def ablations(launches: Sequence[LaunchFacts]) -> dict[str, AblationSummary]:
    """Return by ablation what it gave, in the order in which the ranks name them; a failed launch measured nothing."""
    return {name: _ablation(name, launches) for name in _names(launches)}


def pairs(launch: LaunchFacts, ablation: str) -> list[tuple[Window, Window]]:
    """Return the full window and the ablation's window of each round that has both."""
    if launch.record.status == "failed":
        return []
    full = {window.round: window for window in launch.windows()}
    return [(full[window.round], window) for window in launch.windows(ablation) if window.round in full]


def imbalance(launches: Sequence[LaunchFacts], ablation: str) -> Figure:
    """Return by how many seconds per step the slowest rank is slower than the median of the others in an ablation's
    windows.

    Only where the ablation leaves the ranks alone, so that each has a pace of its own.
    """
    paces = [np.array(found) for launch in launches if (found := _paces(launch, ablation))]
    if not paces:
        return stats.unknown("s", f"no window of {ablation} is complete on every rank")
    if paces[0].shape[1] < 2:
        return stats.unknown("s", "there is one rank")
    return _over_launches([_behind_others(found) for found in paces])


def _paces(launch: LaunchFacts, ablation: str) -> list[list[float]]:
    """Return the seconds per step of each rank in each window."""
    if launch.record.status == "failed":
        return []
    return [[rank.steady_s / len(rank.steady) for rank in window.ranks] for window in launch.windows(ablation)]


def _behind_others(paces: NDArray[np.float64]) -> Figure:
    slowest = int(paces.mean(axis=0).argmax())
    others = np.median(np.delete(paces, slowest, axis=1), axis=1)
    return stats.mean_interval((paces[:, slowest] - others).tolist(), "s")


def _names(launches: Sequence[LaunchFacts]) -> list[str]:
    """Return the ablations that ranks say they ran or skipped, and those of which a rank that left no record has
    windows.
    """
    ranks = [rank for launch in launches for rank in launch.ranks]
    recorded = (ablation.name for rank in ranks if rank.record for ablation in rank.record.ablations)
    seen = (window.ablation for rank in ranks for window in rank.windows)
    return [name for name in dict.fromkeys(chain(recorded, seen)) if name != FULL]


def _ablation(name: str, launches: Sequence[LaunchFacts]) -> AblationSummary:
    found = [seconds for launch in launches if (seconds := _seconds(launch, name))]
    reason = _why_unknown(name, launches, measured_any=bool(found))
    if reason is not None:
        time, ratio = stats.unknown("s", reason), stats.unknown("ratio", reason)
        return AblationSummary(gain=time, share=ratio, step=time)
    return AblationSummary(
        gain=_over_launches([stats.mean_interval([full - ablation for full, ablation in one], "s") for one in found]),
        share=_over_launches(
            [
                stats.ratio_of_totals([(full - ablation, full) for full, ablation in one], "ratio", signed=True)
                for one in found
            ]
        ),
        step=_over_launches([stats.mean_interval([ablation for _, ablation in one], "s") for one in found]),
    )


def _seconds(launch: LaunchFacts, ablation: str) -> list[Pair]:
    """Return what steps take with and without, by steps in turns where a window holds both."""
    return [
        without.in_turns() or (full.seconds_per_step, without.seconds_per_step)
        for full, without in pairs(launch, ablation)
    ]


def _why_unknown(name: str, launches: Sequence[LaunchFacts], *, measured_any: bool) -> str | None:
    """Return why nothing is known of the ablation, a rank's own reason first; None: there are pairs."""
    records = [rank.record for launch in launches for rank in launch.ranks if rank.record]
    skipped = (
        ablation.skipped
        for record in records
        for ablation in record.ablations
        if ablation.name == name and ablation.skipped
    )
    ended = () if measured_any else (*(launch.record.reason for launch in launches if launch.record.reason), NO_PAIRS)
    return next(chain(skipped, ended), None)


def _over_launches(figures: Sequence[Figure]) -> Figure:
    """Return the figure of the only launch or, of several, the mean of their values with its interval."""
    if len(figures) == 1:
        return figures[0]
    values = [figure.value for figure in figures if figure.value is not None]
    return stats.mean_interval(values, figures[0].unit, scope="launches")


def jitter_wait(launches: Sequence[LaunchFacts], ablation: str) -> Figure:
    """Return the share of a full step that waiting for whoever is last takes beyond waiting for the slowest rank.

    Of an ablation that leaves each rank a pace of its own. Would ranks meet in every step s, it took E[max_r w_r(s)],
    where rank r takes w_r(s) by itself; were each as even as its mean, max_r E[w_r].
    """
    found = [
        (_lost_ns(_durations(ranks)) * NS, full.seconds_per_step) for full, ranks in _common_steps(launches, ablation)
    ]
    return stats.ratio_of_totals(found, "ratio", reason=f"no window of {ablation} has steps that all ranks took")


def jitter_phases(launches: Sequence[LaunchFacts], ablation: str) -> dict[str, float]:
    """Return for each phase of the host what part of `jitter_wait` were gone, did it take its mean in every step.

    Empty where nothing is lost or known.
    """
    windows = [ranks for _, ranks in _common_steps(launches, ablation)]
    lost_ns = sum(_lost_ns(_durations(ranks)) for ranks in windows)
    if lost_ns <= 0:
        return {}
    evened_ns = {phase: sum(_lost_ns(_evened(ranks, place)) for ranks in windows) for place, phase in enumerate(PHASES)}
    return {phase: 1 - left_ns / lost_ns for phase, left_ns in evened_ns.items()}


# The steps of each rank in a window that all of them took, in one order.
_Common = list[list[StepRecord]]


def _common_steps(launches: Sequence[LaunchFacts], ablation: str) -> Iterator[tuple[Window, _Common]]:
    """Yield the full window of each round with what the ranks did in the ablation's, where that can be compared."""
    for launch in launches:
        for full, without in pairs(launch, ablation):
            by_rank = [{step.step: step for step in rank.steady} for rank in without.ranks]
            common = sorted(set.intersection(*(set(steps) for steps in by_rank)))
            if len(by_rank) > 1 and common:
                yield full, [[steps[number] for number in common] for steps in by_rank]


def _durations(ranks: _Common) -> NDArray[np.float64]:
    return np.array([[step.duration_ns for step in steps] for steps in ranks], np.float64)


def _evened(ranks: _Common, phase: int) -> NDArray[np.float64]:
    """Return the durations, did a phase take each rank its mean in every step."""
    of_phase = np.array([[step.phases_ns[phase] for step in steps] for steps in ranks], np.float64)
    evened: NDArray[np.float64] = _durations(ranks) - of_phase + of_phase.mean(axis=1, keepdims=True)
    return evened


def _lost_ns(durations_ns: NDArray[np.float64]) -> float:
    return float(durations_ns.max(axis=0).mean() - durations_ns.mean(axis=1).max())
