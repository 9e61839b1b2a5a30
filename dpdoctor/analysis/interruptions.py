"""What happens now and then, as an evaluation, a checkpoint or a loader that begins anew, and what it takes."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import msgspec
import numpy as np

from dpdoctor import units
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.launches import NS, LaunchFacts, RankWindow, Window
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.summary import LoaderSummary, ModeSummary
from dpdoctor.analysis.weighing import share_beside
from dpdoctor.records import CALLED_AT, CALLED_BY, PHASES, EventRecord, Launch, Loader, Rank, StepRecord

# Of the steps, or of the time in collections, from which something is said of all.
NEARLY_ALL = 0.9


def events_by_step(rank: Rank, kind: str, detail: str | None = None) -> dict[int, int]:
    """Return the ns that events of one kind, or with one detail, took in each step of a rank, by the step's number."""
    found: dict[int, int] = defaultdict(int)
    for event, step in _within_steps(rank, kind):
        if detail in {None, event.detail}:
            found[step.step] += event.duration_ns
    return dict(found)


def _within_steps(rank: Rank, kind: str) -> Iterator[tuple[EventRecord, StepRecord]]:
    """Yield the events of one kind that began within a step, each with that."""
    for event in rank.events:
        index = bisect_right(rank.steps, event.at_ns, key=attrgetter("begin_ns")) - 1 if event.kind == kind else -1
        if index >= 0 and event.at_ns < (step := rank.steps[index]).begin_ns + step.duration_ns:
            yield event, step


def slowest_by_step(launch: Launch, kind: str) -> dict[int, float]:
    """Return the seconds that events of one kind took in each step, on the rank that they held up most."""
    found: dict[int, float] = defaultdict(float)
    for rank in launch.ranks:
        for step, duration_ns in events_by_step(rank, kind).items():
            found[step] = max(found[step], duration_ns * NS)
    return dict(found)


class CollectCall(NamedTuple):
    """What calls gc.collect(): a line of the user's or, where one is named, a library that this line calls."""

    line: str
    library: str = ""

    @property
    def words(self) -> str:
        """That it does, as a sentence without its end."""
        who, via = (self.library, f", from {self.line}") if self.library else (self.line, "")
        return f"{who} calls gc.collect(){via}"


def garbage_collections(windows: Iterable[tuple[LaunchFacts, Window]]) -> list[EventRecord]:
    """Return the garbage collections in the steady steps of these windows, on all ranks."""
    found = []
    for launch, window in windows:
        for rank, part in zip(launch.ranks, window.ranks, strict=True):
            steady = {step.step for step in part.steady}
            found += [event for event, step in _within_steps(rank, "gc") if step.step in steady]
    return found


def collect_call(events: Iterable[EventRecord]) -> CollectCall | None:
    """Return whose calls of gc.collect() took nearly all of the time of these collections; None: nobody's did."""
    taken_ns: dict[CollectCall, int] = defaultdict(int)
    for event in events:
        by, _, line = event.detail.partition(CALLED_AT)
        taken_ns[CollectCall(line, by.partition(CALLED_BY)[2])] += event.duration_ns
    found = max(taken_ns, key=taken_ns.__getitem__, default=CollectCall(""))
    return found if found.line and taken_ns[found] >= NEARLY_ALL * sum(taken_ns.values()) else None


def share_of_events(windows: Iterable[tuple[LaunchFacts, Window]], kind: str) -> Figure:
    """Return the share of the steady steps' time that events of one kind took; the interval is over windows.

    Ranks wait for each other in every step: what holds up one of them holds up all.
    """
    parts = []
    for launch, window in windows:
        taken = slowest_by_step(launch, kind)
        steps = [step.step for step in window.ranks[0].steady]
        seconds, _ = window.step()
        parts.append((sum(taken.get(step, 0.0) for step in steps), seconds))
    return stats.ratio_of_totals(parts, "ratio", reason="no measured window was complete on every rank")


class Interruptions(msgspec.Struct, frozen=True, kw_only=True):
    """All that was seen of one kind, such as evaluations.

    Attributes:
        seconds: that one takes, on the slowest rank.
        every: steps from one to the next.
        per_epoch: steps of an epoch; None: that is not known.
        share: of all time.
    """

    count: int
    seconds: Figure
    every: float
    share: Figure
    per_epoch: int | None = None

    @property
    def rhythm(self) -> str:
        """How often one comes, in words."""
        steps = f"every {units.count(round(self.every), 'step')}"
        is_epochs = self.per_epoch is not None and round(self.every) == self.per_epoch
        return f"once per epoch, {steps}" if is_epochs else steps

    @property
    def evidence(self) -> tuple[str, ...]:
        """How long one takes, and how often it comes."""
        assert self.seconds.value is not None
        each = f"One takes {units.seconds(self.seconds.value)}; {units.count(self.count, 'time')} seen."
        return each, f"One comes {self.rhythm}."


def _share_of_time(
    seconds: Figure, every: float, *, plain_s: float, counted_s: float, epoch_s: Figure | None
) -> Figure:
    """Return the share of all time of what comes every so many steps, among others that happen meanwhile.

    How long a step is without it: a plain one, and a mean one of all that were counted, with their edges. `epoch_s`
    where it comes once per epoch: of edges, which are few, measured windows hold as many as chance has it.
    """
    others_s = every * counted_s
    if epoch_s is not None and epoch_s.value is not None and epoch_s.reason is None:
        others_s = max(every * plain_s, epoch_s.value - (seconds.value or 0.0))
    return share_beside(seconds, others_s)


def interruptions(
    launch: Launch, windows: Sequence[tuple[LaunchFacts, Window]], kind: str, epoch_s: Figure
) -> Interruptions | str | None:
    """Return what was seen of one kind of event in a launch, and its share of the time by the mode's measured windows
    and its epoch.

    None: nothing, though a whole epoch was seen, or has no known length; str: why it cannot be told.
    """
    seen = slowest_by_step(launch, kind)
    per_epoch = next((r.record.steps_per_epoch for r in launch.ranks if r.record), None)
    if not seen:
        return _none_seen(kind, _steps_recorded(launch), per_epoch)
    every = _every(launch, sorted(seen)) if len(seen) > 1 else per_epoch
    if every is None:
        return f"one {kind} was seen, and the length of an epoch is not known, nor how often it comes"
    if len(seen) == 1 and (without := _longest_without(launch, *seen)) > every + 1:
        return f"one {kind} was seen, with {units.count(without, 'step')} without: it does not come in each epoch"
    compiled = slowest_by_step(launch, "compile")
    usual = [taken for step, taken in seen.items() if step not in compiled]
    if not usual:
        return f"something was compiled in each {kind} that was seen, which the next ones are spared"
    seconds = stats.mean_interval(usual, "s")
    plain_s = _plain_step(windows, kind)
    if plain_s is None:
        return f"no step without {kind} was measured to compare with"
    counted_s = _counted_step(windows, kind, plain_s)
    of_epoch = epoch_s if round(every) == per_epoch else None
    share = _share_of_time(seconds, every, plain_s=plain_s, counted_s=counted_s, epoch_s=of_epoch)
    return Interruptions(count=len(seen), seconds=seconds, every=every, share=share, per_epoch=per_epoch)


def _every(launch: Launch, seen: list[int]) -> float:
    """Return the median of the steps from one to the next, in which as many samples are trained on as between them.

    Until a new optimizer is known to have taken the place of another, its steps are counted as one.
    """
    between = np.diff(seen).astype(float)
    samples = {step.step: step.samples_drawn or step.samples_entered for step in launch.ranks[0].steps}
    usual = float(np.median(list(samples.values())))
    if usual > 0:
        trained = [sum(samples.get(step, 0) for step in range(*part)) for part in pairwise(seen)]
        between = np.maximum(between, np.round(np.array(trained) / usual))
    return float(np.median(between))


def _longest_without(launch: Launch, seen: int) -> int:
    """Return the steps before or after the one that was seen, whichever are more."""
    numbers = [step.step for rank in launch.ranks for step in rank.steps]
    return max(seen - min(numbers), max(numbers) - seen)


def _none_seen(kind: str, recorded: int, per_epoch: int | None) -> str | None:
    if per_epoch is None or recorded >= per_epoch:
        return None
    steps = f"{units.whole(recorded)} of {units.count(per_epoch, 'step')}"
    return f"no {kind} was seen, but the recording ended after {steps} of an epoch"


def _steps_recorded(launch: Launch) -> int:
    return max((len(rank.steps) for rank in launch.ranks), default=0)


def _plain_step(windows: Iterable[tuple[LaunchFacts, Window]], kind: str) -> float | None:
    """Return the mean seconds of a steady step in which nothing of this kind happened.

    On a GPU of whole windows, as the host's time of a single step is not the device's.
    """
    seconds, steps = 0.0, 0
    for launch, window in windows:
        seen = slowest_by_step(launch, kind)
        for rank in window.ranks:
            plain = [step.duration_ns for step in rank.steady if step.step not in seen]
            if not launch.on_gpu:
                seconds, steps = seconds + sum(plain) * NS, steps + len(plain)
            elif len(plain) == len(rank.steady):
                seconds, steps = seconds + rank.steady_s, steps + len(plain)
    return seconds / steps if steps else None


def _counted_step(windows: Iterable[tuple[LaunchFacts, Window]], kind: str, plain_s: float) -> float:
    """Return the mean seconds of any counted step, edges too, less what this kind took; on a GPU a plain one's."""
    found = []
    for launch, window in windows:
        if launch.on_gpu:
            return plain_s
        seen = slowest_by_step(launch, kind)
        for step in (step for rank in window.ranks for step in rank.counted):
            taken_s = seen.get(step.step, 0.0)
            left_s = step.duration_ns * NS - taken_s
            found.append(max(plain_s, left_s) if taken_s else left_s)
    return float(np.mean(found))


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
    every = _steps_between(launches, loader, per_epoch)
    if step_s is None or every is None:
        return None
    wait_s = float(np.mean([_waited_s(step) for step in usual]))
    seen = {id(rank): _of_rank(rank, loader) for launch in launches for rank in launch.ranks}
    # Below zero, too: of waits that vary, those above their mean alone would look like a cost.
    excess = [
        min(waits.get(step.step, _waited_s(step)) - wait_s, longer_s)
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
    share = _share_of_time(seconds, every, plain_s=step_s, counted_s=counted_s, epoch_s=of_epoch)
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


def _steps_between(launches: Sequence[Launch], loader: LoaderSummary, per_epoch: int | None) -> int | None:
    """Return the steps from one beginning to the next: those of an epoch, or fewer where a rank shows it.

    The most that were seen, as batches that an ablation throws away make it fewer.
    """
    ranks = [rank for launch in launches for rank in launch.ranks]
    between = [after - before for rank in ranks for before, after in pairwise(sorted(_begins(rank, loader)))]
    return min([*([per_epoch] if per_epoch else []), *([max(between)] if between else [])], default=None)
