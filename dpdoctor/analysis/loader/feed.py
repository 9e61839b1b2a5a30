"""Which loader fed the steps, and its batches in the full windows of one launch, or in those of an ablation."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from dpdoctor.analysis.base.launch_facts import LaunchFacts
from dpdoctor.analysis.base.windows import NS, RankWindow, Window
from dpdoctor.loading import BatchRecord
from dpdoctor.records import FULL, Launch, Loader


class WindowFeed(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank's loader did in one window.

    Attributes:
        asked: batches that its counted steps asked for, in that order.
        steady: those of them that its steady steps asked for.
        under_way: batches whose fetch lay in it, wholly or in part, whichever step asked for them.
    """

    rank: int
    window: RankWindow
    asked: tuple[BatchRecord, ...]
    steady: tuple[BatchRecord, ...]
    under_way: tuple[BatchRecord, ...]

    @property
    def fetched(self) -> tuple[BatchRecord, ...]:
        """Return the batches to judge fetches by: what an ablation's window fetched ahead, beside other work, is left
        out.

        They are those whose fetch began in the window; where fetches outlast it, those that its steps asked for.
        """
        begun = tuple(b for b in self.under_way if b.fetch_begin_ns >= self.window.window.begin_ns)
        return begun or tuple(b for b in self.asked if b.fetch_ns)

    def busy_s(self, worker: int) -> float:
        """Return the seconds of the window in which a worker was fetching."""
        begin_ns, end_ns = self.window.window.begin_ns, self.window.window.end_ns
        spans = ((b.fetch_begin_ns, b.fetch_begin_ns + b.fetch_ns) for b in self.under_way if b.worker == worker)
        return sum(min(end, end_ns) - max(begin, begin_ns) for begin, end in spans) * NS


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """The loader that fed the training in one launch: `windows` has one entry per window, with all ranks.

    `disturbed`: other processes took cores meanwhile, and the ranks missed them.
    """

    number: int
    loader: Loader
    windows: tuple[tuple[WindowFeed, ...], ...]
    disturbed: bool = False

    @property
    def parts(self) -> list[WindowFeed]:
        """Return the windows of all ranks, one after another."""
        return [part for window in self.windows for part in window]


def feed(launch: LaunchFacts, ablation: str = FULL) -> Feed | None:
    """Return what fed the steps of a launch; None: no batch was recorded on every rank in a window of that ablation."""
    windows = launch.windows(ablation)
    number = _feeding(launch, windows)
    loader = _loader(launch, number)
    if number is None or loader is None:
        return None
    of_ranks = [
        _window_feeds(index, [w.ranks[index] for w in windows], [b for b in rank.batches if b.loader == number])
        for index, rank in enumerate(launch.ranks)
    ]
    return Feed(number=number, loader=loader, windows=tuple(zip(*of_ranks, strict=True)))


def _feeding(launch: Launch, windows: Sequence[Window]) -> int | None:
    """Return the loader that most steady steps asked; of two that feed every step, the one that keeps them longer."""
    asked: Counter[int] = Counter()
    waited: Counter[int] = Counter()
    for rank, record in enumerate(launch.ranks):
        steady = {step.step for window in windows for step in window.ranks[rank].steady}
        for batch in record.batches:
            if batch.step in steady:
                asked[batch.loader] += 1
                waited[batch.loader] += batch.wait_ns
    return max(asked, key=lambda number: (asked[number], waited[number]), default=None)


def _loader(launch: Launch, number: int | None) -> Loader | None:
    loaders = next((rank.record.conversion.loaders for rank in launch.ranks if rank.record), ())
    return loaders[number] if number is not None and 0 <= number < len(loaders) else None


def _window_feeds(rank: int, parts: Sequence[RankWindow], batches: Sequence[BatchRecord]) -> Iterator[WindowFeed]:
    """Yield what a rank's loader did in each of its windows."""
    by_step: defaultdict[int, list[BatchRecord]] = defaultdict(list)
    for batch in batches:
        by_step[batch.step].append(batch)
    timed = [b for b in batches if b.fetch_ns]
    # Several workers' fetches are not in order. By these bounds few are looked at for each of many windows.
    ends = list(accumulate((b.fetch_begin_ns + b.fetch_ns for b in timed), max))
    begins = list(accumulate((b.fetch_begin_ns for b in reversed(timed)), min))[::-1]
    for part in parts:
        begin_ns, end_ns = part.window.begin_ns, part.window.end_ns
        near = timed[bisect_right(ends, begin_ns) : bisect_left(begins, end_ns)]
        yield WindowFeed(
            rank=rank,
            window=part,
            asked=tuple(b for step in part.counted for b in by_step.get(step.step, ())),
            steady=tuple(b for step in part.steady for b in by_step.get(step.step, ())),
            under_way=tuple(b for b in near if b.fetch_begin_ns < end_ns and b.fetch_begin_ns + b.fetch_ns > begin_ns),
        )
