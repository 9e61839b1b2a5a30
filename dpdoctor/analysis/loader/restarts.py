"""What it costs the loader that feeds the training to begin anew: the excess of the steps in which it does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.figure import Figure
from dpdoctor.analysis.base.interruptions import events_by_step, share_of_time
from dpdoctor.analysis.base.launch_facts import LaunchFacts
from dpdoctor.analysis.base.summary import LoaderSummary, ModeSummary
from dpdoctor.analysis.base.windows import NS, RankWindow, Window
from dpdoctor.records import PHASES, Launch, Loader, Rank, StepRecord

_DATA_WAIT = PHASES.index("data_wait")
# An epoch that ends with fewer of its batches was left early.
READ_TO_ITS_END = 0.9


class Restarts(msgspec.Struct, frozen=True, kw_only=True):
    """The beginnings that were seen in measured windows, beside steps in which nothing begins, the usual ones.

    Attributes:
        seconds: that the loader takes at one more than in a usual step.
        every: steps from one to the next.
        share: of all time.
    """

    count: int
    seconds: Figure
    every: int
    share: Figure


def restarts(
    launches: Sequence[Launch],
    windows: Sequence[tuple[LaunchFacts, Window]],
    loader: LoaderSummary,
    epoch_s: Figure,
) -> Restarts | None:
    """Return what beginnings cost, given all measured windows and the mode's epoch; None: none was seen beside usual
    steps, or nobody knows how often they come.
    """
    parts = [(launch, launch.ranks[i], part) for launch, window in windows for i, part in enumerate(window.ranks)]
    usual = [step for _, _, part in parts for step in part.counted if not step.epoch_edge]
    per_epoch, step_s = _steps_per_epoch(launches), _usual_step_s(windows, usual)
    every = _every(launches, loader, per_epoch)
    if step_s is None or every is None:
        return None
    wait_s = float(np.mean([_waited_s(step) for step in usual]))
    seen = {id(rank): _of_rank(rank, loader) for launch in launches for rank in launch.ranks}
    excess = [
        max(0.0, min(waits.get(step.step, _waited_s(step)) - wait_s, longer_s))
        for launch, rank, part in parts
        for begun, elsewhere, waits in [seen[id(rank)]]
        for step, longer_s in _edges(part, elsewhere, step_s, on_gpu=launch.on_gpu)
        if step.step in begun
    ]
    if not excess:
        return None
    seconds = stats.mean_interval(excess, "s")
    counted_s = (sum(part.wall_s for *_, part in parts) - sum(excess)) / sum(len(part.counted) for *_, part in parts)
    of_epoch = epoch_s if every == per_epoch else None
    share = share_of_time(seconds, every, plain_s=step_s, counted_s=counted_s, epoch_s=of_epoch)
    return Restarts(count=len(excess), seconds=seconds, every=every, share=share)


def begins_every_step(windows: Sequence[tuple[LaunchFacts, Window]], loader: LoaderSummary) -> bool:
    """Return whether most measured steps begin to iterate the loader that feeds them."""
    found = [
        step.step in begun
        for launch, window in windows
        for rank, part in zip(launch.ranks, window.ranks, strict=True)
        for begun in [_begins(rank, loader)]
        for step in part.counted
    ]
    return 2 * sum(found) > len(found)


def is_left_early(launches: Sequence[Launch], mode: ModeSummary) -> bool:
    """Return whether the script begins the loader anew though it has more batches to give."""
    loader, length = mode.loader, _batches_per_iteration(mode)
    ranks = [rank for launch in launches for rank in launch.ranks]
    seen = [(b.iteration, b.batch + 1) for r in ranks for b in r.batches if loader and b.loader == loader.index]
    if length is None or len({iteration for iteration, _ in seen}) < 2:
        return False
    return max(batch for _, batch in seen) < READ_TO_ITS_END * length


def _batches_per_iteration(mode: ModeSummary) -> int | None:
    """Return the batches that a rank gets in one pass over the loader that feeds it; None: no end known."""
    loader, conversion = mode.loader, mode.conversion
    if loader is None or conversion is None or not 0 <= loader.index < len(conversion.loaders):
        return None
    found: Loader = conversion.loaders[loader.index]
    shared_by = mode.world_size if found.rule == "per-device" else 1
    return None if found.num_batches is None else found.num_batches // shared_by


def _of_rank(rank: Rank, loader: LoaderSummary) -> tuple[set[int], dict[int, float], dict[int, float]]:
    """Return the steps in which the loader begins, the seconds of evaluations, and of waits where another begins, too.

    What a step waits for two loaders is told apart by the batches of this one.
    """
    begun = _begins(rank, loader)
    details = {event.detail for event in rank.events if event.kind == "iterator"} - {str(loader.index)}
    others = {step for detail in details for step in events_by_step(rank, "iterator", detail)}
    both = begun & others
    waits: defaultdict[int, float] = defaultdict(float)
    for batch in rank.batches:
        if batch.loader == loader.index and batch.step in both:
            waits[batch.step] += (batch.wait_ns + batch.opening_ns) * NS
    elsewhere = {step: duration_ns * NS for step, duration_ns in events_by_step(rank, "evaluation").items()}
    return begun, elsewhere, waits


def _begins(rank: Rank, loader: LoaderSummary) -> set[int]:
    return set(events_by_step(rank, "iterator", str(loader.index)))


def _waited_s(step: StepRecord) -> float:
    """Return the seconds that a step waited for data."""
    return step.phases_ns[_DATA_WAIT] * NS


def _usual_step_s(windows: Sequence[tuple[LaunchFacts, Window]], usual: Sequence[StepRecord]) -> float | None:
    """Return the mean seconds of these steps or, on GPUs, of those of windows without an edge; None: there are none."""
    if not any(launch.on_gpu for launch, _ in windows):
        return float(np.mean([step.duration_ns for step in usual])) * NS if usual else None
    # Not by what is steady: edges are, where most steps are such.
    whole = [window.ranks for _, window in windows if not any(s.epoch_edge for r in window.ranks for s in r.counted)]
    parts = [part for ranks in whole for part in ranks]
    return sum(part.wall_s for part in parts) / sum(len(part.counted) for part in parts) if parts else None


def _edges(
    part: RankWindow, elsewhere: Mapping[int, float], step_s: float, *, on_gpu: bool
) -> Iterator[tuple[StepRecord, float]]:
    """Yield a window's edges, each with the seconds that it is longer than a usual step without its evaluation.

    On a GPU, whose work the host's time does not tell, each has the same part of what the window is longer.
    """
    edges = [step for step in part.counted if step.epoch_edge]
    longer_s = [step.duration_ns * NS - elsewhere.get(step.step, 0.0) - step_s for step in edges]
    if on_gpu and edges:
        others_s = sum(elsewhere.get(step.step, 0.0) for step in edges)
        longer_s = [(part.wall_s - len(part.counted) * step_s - others_s) / len(edges)] * len(edges)
    yield from zip(edges, longer_s, strict=True)


def _steps_per_epoch(launches: Sequence[Launch]) -> int | None:
    records = [rank.record for launch in launches for rank in launch.ranks if rank.record]
    return next((record.steps_per_epoch for record in records if record.steps_per_epoch), None)


def _every(launches: Sequence[Launch], loader: LoaderSummary, per_epoch: int | None) -> int | None:
    """Return the steps from one beginning to the next: those of an epoch, or fewer where a rank shows it.

    The most that were seen, as batches that an ablation throws away make it fewer.
    """
    ranks = [rank for launch in launches for rank in launch.ranks]
    between = [after - before for rank in ranks for before, after in pairwise(sorted(_begins(rank, loader)))]
    return min([*([per_epoch] if per_epoch else []), *([max(between)] if between else [])], default=None)
