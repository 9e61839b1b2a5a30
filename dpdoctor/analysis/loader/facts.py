"""The figures of the loader that fed the training, each from the full windows only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from dpdoctor.analysis import stats
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.loader.feed import Feed
from dpdoctor.analysis.windows import NS
from dpdoctor.loading import IN_PROCESS, BatchRecord, HandOff
from dpdoctor.records import Launch

NO_FETCH = "no fetch was timed in a full window"
NO_EDGE = "no iteration of this loader began inside a full window"
NO_HAND_OFF = "no batch lay ready when it was asked for, and the hand-off was not measured apart"
# Fewer takings of ready batches than this say less than the hand-off that was measured apart.
LEAST_TAKEN = 10


def fetch(feed: Feed) -> Figure:
    """Return the seconds that one fetch takes, dataset and collate together; wall."""
    return _mean_over(feed, lambda batch: batch.fetch_ns * NS)


def collate(feed: Feed) -> Figure:
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


def wait(feed: Feed) -> Figure:
    """Return the seconds per steady step that the training thread waits for this loader."""
    parts = [
        (
            sum(batch.wait_ns for part in window for batch in part.steady) * NS,
            sum(len(part.window.steady) for part in window),
        )
        for window in feed.windows
    ]
    return stats.ratio_of_totals(parts, "s")


def ready(feed: Feed) -> dict[int, float]:
    """Return the share of the steady asks that found so many batches ready; empty where nobody counted them."""
    found = Counter(b.ready for part in feed.parts for b in part.steady if b.ready >= 0)
    total = sum(found.values())
    return {depth: found[depth] / total for depth in sorted(found)}


def batch_bytes(feed: Feed) -> float | None:
    """Return the mean bytes of a batch; None where no tensor was seen in any."""
    sizes = [b.num_bytes for part in feed.parts for b in part.asked if b.num_bytes]
    return float(np.mean(sizes)) if sizes else None


def receive(feed: Feed, hand_offs: Sequence[HandOff]) -> Figure:
    """Return the seconds that taking over a ready batch keeps the training thread.

    From the batches whose fetch had ended when they were asked for; where they are few, measured apart from training.
    """
    taken = [b.wait_ns * NS for part in feed.parts for b in part.steady if _lay_ready(b)]
    if len(taken) >= LEAST_TAKEN:
        return stats.median_interval(taken, "s")
    return stats.median_interval([h.receive_ns * NS for h in hand_offs], "s", reason=NO_HAND_OFF)


def edge(feed: Feed) -> Figure:
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


def hand_offs(feed: Feed, launch: Launch) -> tuple[HandOff, ...]:
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
    return stats.ratio_of_totals(parts, "s", reason=NO_FETCH)
