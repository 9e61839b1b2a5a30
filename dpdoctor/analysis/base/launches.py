"""A launch with what is read from its records again and again: its measured windows, rank by rank, and its traces."""

from __future__ import annotations

import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property

import msgspec
from msgspec.structs import replace

from dpdoctor.analysis.base.traces import Traces
from dpdoctor.records import ALL_PHASES, FULL, Launch, Rank, Run, StepRecord, WindowRecord

NS = 1e-9
# Kinds of windows: before any is measured, without a profiler, and with one.
WARMUP, MEASURE, TRACE = "warmup", "measure", "trace"
# By so much the mean samples of all steps are above those of the steady ones where these do not stand for the script.
MOST_LEFT_OUT = 1.05
# Above this share of edges an epoch is so short that no steady step need hold a whole batch.
OFTEN = 1 / 3
# Of the steps of each window so many exchange the same before ranks go over to exchanging otherwise, or after that; on
# the other side at most the rest do. What a script exchanges now and then, as it logs, changes neither.
USUAL = 0.75
# The steps in which a script sets up what it exchanges, as DistributedDataParallel its buckets; 0: it has no number.
SET_UP = range(1, 4)
# One window that differs may be of a few steps, and hold what comes once in a hundred.
LEAST_OF_TURN = 2
TRACED_LATER = "the trace is of later steps, in which ranks exchange otherwise than in measured ones"
# A kind of windows and the ablation that ran in them.
_Key = tuple[str, str]


class RankWindow(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One window on one rank.

    `steady` leaves out edges: steps in which an epoch began or an evaluation ran, and those that were interrupted.
    """

    window: WindowRecord
    counted: tuple[StepRecord, ...]
    steady: tuple[StepRecord, ...]

    @property
    def wall_s(self) -> float:
        """Return the seconds of all counted steps, device work included."""
        return (self.window.end_ns - self.window.begin_ns) * NS

    @cached_property
    def steady_s(self) -> float:
        """Return the seconds of the steady steps: the wall time less the host time of the others.

        Not to be asked of a window with an edge on a GPU: what the device did meanwhile the host's time does not tell.
        """
        return self.wall_s - (sum(s.duration_ns for s in self.counted) - sum(s.duration_ns for s in self.steady)) * NS

    def phase_s(self, phase: str) -> float:
        """Return the exclusive host seconds of one phase in all steady steps."""
        index = ALL_PHASES.index(phase)
        return sum(s.phases_ns[index] for s in self.steady) * NS


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One window over all ranks of a launch. The slowest rank decides how long it lasted.

    What it measures is given as (amount, per how much), for `stats.ratio_of_totals`: windows differ in length and,
    where batches differ in size, in their samples, and only totals may be divided.
    """

    ranks: tuple[RankWindow, ...]

    @property
    def round(self) -> int:
        """Return the round in which it was measured; windows of one round lie close together in time."""
        return self.ranks[0].window.round

    def step(self) -> tuple[float, int]:
        """Return (seconds, steady steps) of the rank whose steps take longest."""
        slowest = self._slowest()
        return slowest.steady_s, len(slowest.steady)

    def _slowest(self) -> RankWindow:
        """Return the rank whose steps take longest."""
        return max(self.ranks, key=lambda r: r.steady_s / len(r.steady))

    def in_turns(self) -> tuple[float, float] | None:
        """Return the seconds of a steady step that was watched, and of one that was not, of the rank whose steps take
        longest; None: they did not take turns.
        """
        steady = self._slowest().steady
        watched, alone = ([s.duration_ns * NS for s in steady if s.watched is is_on] for is_on in (True, False))
        return (statistics.fmean(watched), statistics.fmean(alone)) if watched and alone else None

    @property
    def is_measured(self) -> bool:
        """Return whether every rank measured all of it, and it is what its ablation says."""
        return all(rank.window.complete and rank.window.kind == MEASURE for rank in self.ranks)

    @property
    def has_edge(self) -> bool:
        """Return whether a step was left out on some rank."""
        return any(len(rank.steady) < len(rank.counted) for rank in self.ranks)

    def with_all_steady(self) -> Window:
        """Return the window with nothing left out."""
        return Window(ranks=tuple(replace(rank, steady=rank.counted) for rank in self.ranks))

    @property
    def seconds_per_step(self) -> float:
        """Return the seconds of a steady step of the rank whose steps take longest."""
        seconds, steps = self.step()
        return seconds / steps

    def throughput(self, samples: Callable[[StepRecord], int], copies: int = 1) -> tuple[float, float]:
        """Return (global samples, seconds) of the steady steps; each sample once that `copies` ranks train on."""
        return sum(samples(s) for r in self.ranks for s in r.steady) / copies, max(r.steady_s for r in self.ranks)

    def throughput_all_steps(self, samples: Callable[[StepRecord], int], copies: int = 1) -> tuple[float, float]:
        """Return (global samples, seconds) of all counted steps; each sample once that `copies` ranks train on."""
        return sum(samples(s) for r in self.ranks for s in r.counted) / copies, max(r.wall_s for r in self.ranks)

    def phase(self, name: str) -> tuple[float, int]:
        """Return (exclusive host seconds of one phase, steady steps), both added up over the ranks."""
        return sum(r.phase_s(name) for r in self.ranks), sum(len(r.steady) for r in self.ranks)

    def collectives(self) -> tuple[int, int]:
        """Return (collectives that were issued, steady steps), both added up over the ranks."""
        steps = [s for r in self.ranks for s in r.steady]
        return sum(s.collectives or 0 for s in steps), len(steps)


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """Where ranks went over to exchanging otherwise, as hooks do that compress or leave out from some step on.

    Attributes:
        step: the first one in the first window that is behind it for all of its length.
        before, after: collectives of a rank in a step.
        is_past: whether figures are of what follows; else too little was measured of it.
        kept: the numbers of the windows that they are of.
    """

    step: int
    before: float
    after: float
    is_past: bool
    kept: range


def turn(launch: Launch) -> Turn | None:
    """Return where ranks began to exchange otherwise in full windows; None: nowhere, or it was not counted.

    Windows count for it that are not complete because they exchange otherwise.
    """
    per_rank = [_of_turn(rank) for rank in launch.ranks]
    windows = _on_every_rank(per_rank) if per_rank else ()
    counts = [Counter(s.collectives for r in window.ranks for s in r.steady) for window in windows]
    if any(None in count for count in counts):
        return None
    for usual in {max(count, key=count.__getitem__) for count in (*counts[:1], *counts[-1:])}:
        share = [count[usual] / count.total() for count in counts]
        rest = [1 - part for part in share]
        if found := _turned(windows, share, rest) or _turned(windows, rest, share):
            return found
    return None


def _of_turn(rank: Rank) -> dict[int, RankWindow]:
    """Return a rank's full windows, also of warm-up or not complete, by number, with steps in which it only trained."""
    by_window: defaultdict[int, list[StepRecord]] = defaultdict(list)
    for step in rank.steps:
        if step.counted and not step.epoch_edge and step.step not in SET_UP:
            by_window[step.window].append(step)
    return {
        window.window: RankWindow(window=window, counted=steps, steady=steps)
        for window in rank.windows
        if window.kind in (WARMUP, MEASURE) and window.ablation == FULL and (steps := tuple(by_window[window.window]))
    }


def _turned(windows: Sequence[Window], before: Sequence[float], after: Sequence[float]) -> Turn | None:
    """Return where a window's share of steps that exchange the same is usual no more; None: nowhere, or of too few.

    It is given for what they exchange `before`, and what they do `after`; one window between may hold the turn itself.
    """
    first = next((place for place, share in enumerate(before) if share < USUAL), 0)
    second = next((at for at in (first, first + 1) if min(after[at:], default=0.0) >= USUAL), 0)
    if not first or not second or min(first, len(windows) - second) < LEAST_OF_TURN:
        return None
    earlier, later = (sum(w.is_measured for w in part) for part in (windows[:first], windows[second:]))
    is_past = later >= min(LEAST_OF_TURN, earlier + 1)
    begin, end = (windows[place].ranks[0].window for place in (second, first - 1))
    kept = range(begin.window, sys.maxsize) if is_past else range(end.window + 1)
    if all(window.ranks[0].window.window in kept for window in windows if window.ranks[0].window.kind == MEASURE):
        return None  # warm-up was past it
    return Turn(
        step=begin.first_step,
        before=_per_step(windows[:first]),
        after=_per_step(windows[second:]),
        is_past=is_past,
        kept=kept,
    )


def _per_step(windows: Sequence[Window]) -> float:
    found = [window.collectives() for window in windows]
    return sum(number for number, _ in found) / sum(steps for _, steps in found)


def measured(launch: Launch) -> dict[_Key, tuple[Window, ...]]:
    """Return the complete windows that every rank recorded and that have a steady step, by (kind, ablation), in their
    order.

    There are none when a rank left nothing at all: the others alone are not the global throughput.
    """
    complete = [list(_complete(rank)) for rank in launch.ranks]
    # One answer for all ranks, and windows of an ablation are read like the full ones they are compared with.
    full = [found for of_rank in complete for found in of_rank if found.window.ablation == FULL]
    edges_are_steady = {kind for kind in (MEASURE, TRACE) if _are_steady([w for w in full if w.window.kind == kind])}
    per_rank = [_rank_windows(found, edges_are_steady) for found in complete]
    world_size = max((rank.record.world_size for rank in launch.ranks if rank.record), default=1)
    if len(per_rank) < world_size:
        return {}
    return {of: _on_every_rank([windows.get(of, {}) for windows in per_rank]) for of in set().union(*per_rank)}


def _without_edges(found: Mapping[_Key, tuple[Window, ...]]) -> dict[_Key, tuple[Window, ...]]:
    """Return the windows that have no edge, of which the wall alone tells how long a step takes.

    Where every full one has an edge, all of them with nothing left out: what edges take is then in the steady figures.
    """
    free = {of: tuple(window for window in windows if not window.has_edge) for of, windows in found.items()}
    if free.get((MEASURE, FULL)):
        return free
    return {of: tuple(window.with_all_steady() for window in windows) for of, windows in found.items()}


def _on_every_rank(per_rank: Sequence[Mapping[int, RankWindow]]) -> tuple[Window, ...]:
    common = sorted(set.intersection(*map(set, per_rank)))
    return tuple(Window(ranks=tuple(windows[number] for windows in per_rank)) for number in common)


def _complete(rank: Rank) -> Iterator[RankWindow]:
    """Yield a rank's complete windows, measured and traced, with all steps that count taken for steady."""
    by_window: defaultdict[int, list[StepRecord]] = defaultdict(list)
    for step in rank.steps:
        if step.counted:
            by_window[step.window].append(step)
    for window in rank.windows:
        if window.complete and window.kind in (MEASURE, TRACE):
            counted = tuple(by_window[window.window])
            yield RankWindow(window=window, counted=counted, steady=counted)


def _rank_windows(complete: Sequence[RankWindow], edges_are_steady: Set[str]) -> dict[_Key, dict[int, RankWindow]]:
    """Return a rank's windows that have a steady step, by (kind, ablation) and number.

    `edges_are_steady` has the kinds of windows in which edges are among the steady steps.
    """
    found: defaultdict[_Key, dict[int, RankWindow]] = defaultdict(dict)
    for whole in complete:
        window = whole.window
        keeps_edges = window.kind in edges_are_steady
        steady = tuple(s for s in whole.counted if (keeps_edges or not s.epoch_edge) and not s.interrupted)
        if steady:
            found[window.kind, window.ablation][window.window] = replace(whole, steady=steady)
    return found


def _are_steady(windows: Sequence[RankWindow]) -> bool:
    """Return whether edges are among the steady steps: the script has little else, or less in a step elsewhere.

    It may build a new iterator in most steps. In epochs of a few steps the last one, whose batch is smaller, weighs
    more where the first is left out. Edges with more in them than any other step, as of other models, stay out.
    """
    steps = [step for window in windows for step in window.counted if not step.interrupted]
    edges = [step for step in steps if step.epoch_edge]
    if not edges or 2 * len(edges) > len(steps):
        return bool(edges)
    steady = [_samples(step) for step in steps if not step.epoch_edge]
    if sum(map(_samples, steps)) * len(steady) <= MOST_LEFT_OUT * sum(steady) * len(steps):
        return False
    return max(map(_samples, edges)) <= max(steady) or len(edges) > OFTEN * len(steps)


def _samples(step: StepRecord) -> int:
    return step.samples_drawn or step.samples_entered


def _with_edges_of_all(ranks: Sequence[Rank]) -> tuple[Rank, ...]:
    """Return ranks of which each has the edges of all: where one evaluates alone, the others wait for it."""
    own = [{step.step for step in rank.steps if step.epoch_edge} for rank in ranks]
    of_all = set().union(*own)
    return tuple(rank if edges == of_all else with_edges(rank, of_all) for rank, edges in zip(ranks, own, strict=True))


def with_edges(rank: Rank, edges: Set[int]) -> Rank:
    """Return a rank with the steps of these numbers as edges beside its own."""
    steps = tuple(replace(step, epoch_edge=True) if step.step in edges else step for step in rank.steps)
    return replace(rank, steps=steps)


class LaunchFacts(Launch, frozen=True, dict=True):
    """A launch of which each fact is found once, when it is first asked for.

    A step that is an edge on one rank is one on all.
    """

    @classmethod
    def of(cls, launch: Launch) -> LaunchFacts:
        """Return the launch with its facts; the same object where it has them already."""
        if isinstance(launch, LaunchFacts):
            return launch
        ranks = _with_edges_of_all(launch.ranks)
        return cls(record=launch.record, ranks=ranks, samples=launch.samples, traced=launch.traced)

    @cached_property
    def on_gpu(self) -> bool:
        """Return whether its ranks may compute on GPUs, behind their hosts' backs."""
        return any(rank.record is not None and rank.record.device_type == "cuda" for rank in self.ranks)

    @cached_property
    def turn(self) -> Turn | None:
        """Return where its ranks went over to exchanging otherwise; None: nowhere, as far as was counted."""
        return turn(self)

    @cached_property
    def _windows(self) -> Mapping[_Key, tuple[Window, ...]]:
        """Windows of one kind of exchange alone: figures over both would be of neither."""
        turn, found = self.turn, measured(self)
        if turn is None:
            return found
        kept = {of: [w for w in windows if w.ranks[0].window.window in turn.kept] for of, windows in found.items()}
        return {of: tuple(windows) for of, windows in kept.items() if windows}

    @cached_property
    def _steady(self) -> Mapping[_Key, tuple[Window, ...]]:
        return _without_edges(self._windows) if self.on_gpu else self._windows

    @cached_property
    def edges_are_steady(self) -> bool:
        """Return whether steps in which an epoch began or an evaluation ran are among the steady ones: most are such
        or, on a GPU, no full window was without.
        """
        return any(step.epoch_edge for window in self.windows() for rank in window.ranks for step in rank.steady)

    @property
    def is_taken_whole(self) -> bool:
        """Return whether its windows are those of a GPU that all have an edge, though most steps are none."""
        found = self._windows.get((MEASURE, FULL), ())
        return self.on_gpu and bool(found) and all(window.has_edge for window in found)

    @cached_property
    def _skipped(self) -> frozenset[str]:
        """Return the ablations that a rank did not run, not to their end, or whose proof did not hold."""
        records = [rank.record for rank in self.ranks if rank.record]
        return frozenset(one.name for record in records for one in record.ablations if one.skipped)

    def windows(self, ablation: str = FULL, *, kind: str = MEASURE, with_edges: bool = False) -> tuple[Window, ...]:
        """Return the complete windows of a kind in which an ablation ran; FULL: in which none did.

        What was skipped on one rank has none: there, some rank trained otherwise than the ablation's name says. Those
        of GPUs have no edge, unless that is usual or they are asked for `with_edges`: what one takes the device is not
        known.
        """
        found = self._windows if with_edges else self._steady
        return () if ablation in self._skipped else found.get((kind, ablation), ())

    @cached_property
    def traces(self) -> Traces:
        """Return the traces of its ranks: without their communication where measured steps exchange otherwise."""
        found = tuple(rank.digest for rank in self.ranks if rank.digest)
        traced = [window.window for rank in self.ranks for window in rank.windows if window.kind == TRACE]
        if self.turn is not None and any(number not in self.turn.kept for number in traced):
            found = tuple(digest.without_communication(TRACED_LATER) for digest in found)
        return Traces(found)


def with_facts(run: Run) -> Run:
    """Return the run with the facts of its launches, which whoever reads it shares."""
    return replace(
        run,
        modes={name: every(launches) for name, launches in run.modes.items()},
        bare=every(run.bare),
        watched=every(run.watched),
        trials={name: LaunchFacts.of(launch) for name, launch in run.trials.items()},
    )


def every(launches: Iterable[Launch]) -> tuple[LaunchFacts, ...]:
    """Return the launches with their facts."""
    return tuple(map(LaunchFacts.of, launches))


def of_one_kind(launches: Iterable[Launch]) -> tuple[LaunchFacts, ...]:
    """Return the launches of a mode whose steady steps are of one kind: where some hold no edges, those that hold some
    are left out.
    """
    found = every(launches)
    without = tuple(launch for launch in found if not launch.edges_are_steady)
    return without if any(launch.windows() for launch in without if launch.record.status != "failed") else found


def shown(launches: Sequence[Launch]) -> LaunchFacts:
    """Return the launch that speaks for the mode: the first that went wrong, as a mode is ok when all of them are."""
    wrong = next((launch for launch in launches if launch.record.status != "ok"), None)
    return of_one_kind(launches)[0] if wrong is None else LaunchFacts.of(wrong)
