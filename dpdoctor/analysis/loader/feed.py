"""Which loader fed the steps, its batches in the full windows of one launch or in an ablation's, and what it took."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import msgspec
import numpy as np

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.launches import NS, LaunchFacts, RankWindow, Window
from dpdoctor.analysis.base.stats import Figure
from dpdoctor.analysis.base.summary import ModeSummary, TransformSummary, WorkerSummary
from dpdoctor.loading import FRESH_WORKERS, IN_PROCESS, PAST_ITER, BatchRecord, HandOff, TransformTime
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


NO_FETCH = "no fetch was timed in a full window"
NO_EDGE = "no iteration of this loader began inside a full window"
NO_HAND_OFF = "no batch was ready when asked for, and the transfer was not measured apart"
DISTURBED = "other processes took cores, and the transfer was not measured apart"
# Fewer takings of ready batches than this say less than the hand-off that was measured apart.
LEAST_TAKEN = 10


def fetch_time(feed: Feed) -> Figure:
    """Return the seconds that one fetch takes, dataset and collate together; wall."""
    return _mean_over(feed, lambda batch: batch.fetch_ns * NS)


def why_unseen(mode: ModeSummary) -> str | None:
    """Return why the fetches of a mode's loader are unknown; None: they are known, or no reason is."""
    if mode.loader is not None:
        return mode.loader.fetch.reason
    if any(ablation.share.reason == PAST_ITER for ablation in mode.ablations.values()):
        return f"{PAST_ITER}: what they do is not seen from inside"
    return None


def queued_time(feed: Feed) -> Figure:
    """Return the seconds of a fetch in which its thread waits for a core."""
    return _mean_over(feed, lambda batch: batch.queued_ns * NS)


def collate_time(feed: Feed) -> Figure:
    """Return the seconds of a fetch that its collate takes."""
    return _mean_over(feed, lambda batch: batch.collate_ns * NS)


def cpu_ratio(feed: Feed) -> Figure:
    """Return the CPU time of the fetching thread over the time in which it had a core or did not want one."""
    parts = [
        (sum(b.cpu_ns for b in batches), sum(b.fetch_ns - b.queued_ns for b in batches)) for batches in _fetched(feed)
    ]
    return stats.ratio_of_totals(parts, "ratio", reason=NO_FETCH)


def fetch_cv(feed: Feed) -> float | None:
    """Return the standard deviation of the fetches over their mean; None below two of them."""
    fetches = [batch.fetch_ns for part in feed.parts for batch in part.fetched]
    return float(np.std(fetches, ddof=1) / np.mean(fetches)) if len(fetches) > 1 else None


def wait_time(feed: Feed) -> Figure:
    """Return the seconds per steady step that the training thread waits for this loader."""
    parts = [
        (
            sum(batch.wait_ns for part in window for batch in part.steady) * NS,
            sum(len(part.window.steady) for part in window),
        )
        for window in feed.windows
    ]
    return stats.ratio_of_totals(parts, "s")


def ready_shares(feed: Feed) -> dict[int, float]:
    """Return the share of the steady asks that found so many batches ready; empty where nobody counted them."""
    found = Counter(b.ready for part in feed.parts for b in part.steady if b.ready >= 0)
    total = sum(found.values())
    return {depth: found[depth] / total for depth in sorted(found)}


def batch_bytes(feed: Feed) -> float | None:
    """Return the mean bytes of a batch; None where no tensor was seen in any."""
    sizes = [b.num_bytes for part in feed.parts for b in part.asked if b.num_bytes]
    return float(np.mean(sizes)) if sizes else None


def batch_tensors(hand_offs: Sequence[HandOff]) -> int | None:
    """Return the tensors of a batch; None where nobody counted them, or it has none."""
    return max((h.num_tensors for h in hand_offs), default=0) or None


def receive_time(feed: Feed, hand_offs: Sequence[HandOff]) -> Figure:
    """Return the seconds that taking over a ready batch keeps the training thread.

    From the batches whose fetch had ended when they were asked for; where they are few, measured apart from training.
    So, too, where others took cores: each of the threads that hand a batch over waits for one beside training, and its
    wait would count as transfer. Measured apart, nothing of the rank keeps it from a core.
    """
    taken = [b.wait_ns * NS for part in feed.parts for b in part.steady if _lay_ready(b)]
    if len(taken) >= LEAST_TAKEN and not feed.disturbed:
        return stats.median_interval(taken, "s")
    reason = DISTURBED if feed.disturbed else NO_HAND_OFF
    return stats.median_interval([h.receive_ns * NS for h in hand_offs], "s", reason=reason)


def epoch_start(feed: Feed) -> Figure:
    """Return the seconds that the first batch of an iteration takes beyond the usual, its iterator included.

    Workers that are started anew for every iteration are in it; what the end of the iteration before took is not.
    """
    usual = [b.wait_ns for part in feed.parts for b in part.steady if b.batch]
    first = [b for part in feed.parts for b in part.asked if not b.batch]
    if not usual:
        return stats.unknown("s", "every batch was the first of its iteration")
    mean = float(np.mean(usual))
    costs = [(b.wait_ns + b.opening_ns - mean) * NS for b in first]
    return stats.mean_interval(costs, "s", reason=NO_EDGE)


def hand_offs_of(feed: Feed, launch: Launch) -> tuple[HandOff, ...]:
    """Return what every rank measured of this loader's hand-off."""
    records = [rank.record for rank in launch.ranks if rank.record]
    return tuple(h for record in records for h in record.hand_offs if h.loader == feed.number)


def _lay_ready(batch: BatchRecord) -> bool:
    has_ended = batch.fetch_ns > 0 and batch.fetch_begin_ns + batch.fetch_ns <= batch.asked_ns
    return batch.worker != IN_PROCESS and batch.ready > 0 and has_ended


def _fetched(feed: Feed) -> list[tuple[BatchRecord, ...]]:
    """Return the batches to judge fetches by, of all ranks, window by window, without windows that have none."""
    found = [tuple(batch for part in window for batch in part.fetched) for window in feed.windows]
    return [batches for batches in found if batches]


def _mean_over(feed: Feed, amount: Callable[[BatchRecord], float]) -> Figure:
    parts = [(sum(map(amount, batches)), len(batches)) for batches in _fetched(feed)]
    return stats.ratio_of_totals(parts, "s", reason=FRESH_WORKERS if FRESH_WORKERS in feed.loader.note else NO_FETCH)


def transform_summaries(feed: Feed, launch: Launch) -> tuple[TransformSummary, ...]:
    """Return each callable of the chain of transforms, in its order, over the items that were looked at on all ranks.

    Its share is that of the items' time, and items are the fetch without its collate.
    """
    found: defaultdict[tuple[int, str], list[TransformTime]] = defaultdict(list)
    for rank in launch.ranks:
        for time in rank.record.transforms if rank.record else ():
            if time.loader == feed.number and time.items_ns:
                found[time.position, time.name].append(time)
    fetch, collate = fetch_time(feed), collate_time(feed)
    items = 1.0 - (collate.value / fetch.value if fetch.value and collate.value else 0.0)
    return tuple(_transform_summary(name, times, fetch, items) for (_, name), times in sorted(found.items()))


def _transform_summary(name: str, times: list[TransformTime], fetch: Figure, items: float) -> TransformSummary:
    share = items * sum(t.total_ns for t in times) / sum(t.items_ns for t in times)
    if fetch.value is None:
        per_batch = fetch
    else:
        per_batch = Figure(value=share * fetch.value, n=sum(t.calls for t in times), unit="s")
    return TransformSummary(name=name, per_batch=per_batch, share=share)


def worker_summaries(feed: Feed) -> tuple[WorkerSummary, ...]:
    """Return each loader process of each rank, those that fetched nothing in a full window left out."""
    by_rank: defaultdict[int, list[WindowFeed]] = defaultdict(list)
    for part in feed.parts:
        by_rank[part.rank].append(part)
    return tuple(
        _worker_summary(windows, rank, worker)
        for rank, windows in sorted(by_rank.items())
        for worker in sorted({batch.worker for part in windows for batch in (*part.under_way, *part.fetched)})
        if worker != IN_PROCESS
    )


def fetch_times(feed: Feed) -> dict[tuple[int, int | None], list[float]]:
    """Return the seconds of the fetches in full windows, by rank and worker; worker None: the training thread."""
    found: defaultdict[tuple[int, int | None], list[float]] = defaultdict(list)
    for part in feed.parts:
        for batch in part.fetched:
            found[part.rank, None if batch.worker == IN_PROCESS else batch.worker].append(batch.fetch_ns * NS)
    return dict(found)


def _worker_summary(windows: Sequence[WindowFeed], rank: int, worker: int) -> WorkerSummary:
    fetches = [[b for b in part.fetched if b.worker == worker] for part in windows]
    parts = [(sum(b.fetch_ns for b in batches) * NS, len(batches)) for batches in fetches if batches]
    wall_s = sum(part.window.wall_s for part in windows)
    return WorkerSummary(
        rank=rank,
        worker=worker,
        batches=sum(map(len, fetches)),
        fetch=stats.ratio_of_totals(parts, "s", reason=NO_FETCH),
        busy=sum(part.busy_s(worker) for part in windows) / wall_s if wall_s > 0 else None,
    )
