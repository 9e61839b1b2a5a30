"""The loader's parts: its callables, and its processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from dpdoctor.analysis import stats
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.loader import facts
from dpdoctor.analysis.loader.feed import Feed, WindowFeed
from dpdoctor.analysis.loader.model import TransformSummary, WorkerSummary
from dpdoctor.analysis.windows import NS
from dpdoctor.loading import IN_PROCESS, TransformTime
from dpdoctor.records import Launch


def transforms(feed: Feed, launch: Launch) -> tuple[TransformSummary, ...]:
    """Return each callable of the chain of transforms, in its order, over the items that were looked at on all ranks.

    Its share is that of the items' time, and items are the fetch without its collate.
    """
    found: defaultdict[tuple[int, str], list[TransformTime]] = defaultdict(list)
    for rank in launch.ranks:
        for time in rank.record.transforms if rank.record else ():
            if time.loader == feed.number and time.items_ns:
                found[time.position, time.name].append(time)
    fetch, collate = facts.fetch(feed), facts.collate(feed)
    items = 1.0 - (collate.value / fetch.value if fetch.value and collate.value else 0.0)
    return tuple(_transform(name, times, fetch, items) for (_, name), times in sorted(found.items()))


def _transform(name: str, times: list[TransformTime], fetch: Figure, items: float) -> TransformSummary:
    share = items * sum(t.total_ns for t in times) / sum(t.items_ns for t in times)
    if fetch.value is None:
        per_batch = fetch
    else:
        per_batch = Figure(value=share * fetch.value, n=sum(t.calls for t in times), unit="s")
    return TransformSummary(name=name, per_batch=per_batch, share=share)


def workers(feed: Feed) -> tuple[WorkerSummary, ...]:
    """Return each loader process of each rank, those that fetched nothing in a full window left out."""
    by_rank: defaultdict[int, list[WindowFeed]] = defaultdict(list)
    for part in feed.parts:
        by_rank[part.rank].append(part)
    return tuple(
        _worker(windows, rank, worker)
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


def _worker(windows: Sequence[WindowFeed], rank: int, worker: int) -> WorkerSummary:
    fetches = [[b for b in part.fetched if b.worker == worker] for part in windows]
    parts = [(sum(b.fetch_ns for b in batches) * NS, len(batches)) for batches in fetches if batches]
    wall_s = sum(part.window.wall_s for part in windows)
    return WorkerSummary(
        rank=rank,
        worker=worker,
        batches=sum(map(len, fetches)),
        fetch=stats.ratio_of_totals(parts, "s", reason=facts.NO_FETCH),
        busy=sum(part.busy_s(worker) for part in windows) / wall_s if wall_s > 0 else None,
    )
