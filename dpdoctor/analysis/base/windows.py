"""The measured windows of one launch, rank by rank: what throughput, step time and phases are computed from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property

import msgspec
from msgspec.structs import replace

from dpdoctor.records import ALL_PHASES, FULL, Launch, Rank, StepRecord, WindowRecord

NS = 1e-9
# Kinds of windows: without a profiler, and with one.
MEASURE, TRACE = "measure", "trace"
# A kind of windows and the ablation that ran in them.
Key = tuple[str, str]


class RankWindow(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One window on one rank. `steady` leaves out edges: steps in which an epoch began or an evaluation ran."""

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
        slowest = max(self.ranks, key=lambda r: r.steady_s / len(r.steady))
        return slowest.steady_s, len(slowest.steady)

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


def measured(launch: Launch) -> dict[Key, tuple[Window, ...]]:
    """Return the complete windows that every rank recorded and that have a steady step, by (kind, ablation), in their
    order.

    There are none when a rank left nothing at all: the others alone are not the global throughput.
    """
    complete = [list(_complete(rank)) for rank in launch.ranks]
    # One answer for all ranks, and windows of an ablation are read like the full ones they are compared with.
    full = [found for of_rank in complete for found in of_rank if found.window.ablation == FULL]
    edges_are_steady = {kind for kind in (MEASURE, TRACE) if _mostly_edges([w for w in full if w.window.kind == kind])}
    per_rank = [_rank_windows(found, edges_are_steady) for found in complete]
    world_size = max((rank.record.world_size for rank in launch.ranks if rank.record), default=1)
    if len(per_rank) < world_size:
        return {}
    return {of: _on_every_rank([windows.get(of, {}) for windows in per_rank]) for of in set().union(*per_rank)}


def without_edges(found: Mapping[Key, tuple[Window, ...]]) -> dict[Key, tuple[Window, ...]]:
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


def _rank_windows(complete: Sequence[RankWindow], edges_are_steady: Set[str]) -> dict[Key, dict[int, RankWindow]]:
    """Return a rank's windows that have a steady step, by (kind, ablation) and number.

    `edges_are_steady` has the kinds of windows in which edges are among the steady steps.
    """
    found: defaultdict[Key, dict[int, RankWindow]] = defaultdict(dict)
    for whole in complete:
        window = whole.window
        steady = tuple(s for s in whole.counted if window.kind in edges_are_steady or not s.epoch_edge)
        if steady:
            found[window.kind, window.ablation][window.window] = replace(whole, steady=steady)
    return found


def _mostly_edges(windows: Sequence[RankWindow]) -> bool:
    """Return whether an edge is what this script usually does: it builds a new iterator in most steps, say."""
    steps = [step for window in windows for step in window.counted]
    return 2 * sum(step.epoch_edge for step in steps) > len(steps)
