"""Single fetches that take far longer than the others: a large file, a slow disk, an item that is hard to decode."""

from __future__ import annotations

import numpy as np

from dpdoctor.analysis import stats
from dpdoctor.analysis.loader.feed import Feed
from dpdoctor.analysis.loader.model import SlowFetches
from dpdoctor.analysis.loader.predict import Basis
from dpdoctor.analysis.windows import NS

# A fetch that takes less than this many times the usual is not worth a look, however even the others are.
LEAST_RATIO = 2.0
# Fewer than this are an accident, and a larger share of all is no exception.
LEAST_SLOW = 3
MOST_SHARE = 0.25
NOT_SIMULATED = "the loader could not be simulated"


def slow_fetches(feed: Feed, basis: Basis | None) -> SlowFetches | None:
    """Return the fetches that take far longer than the others; what a step takes without is simulated from `basis`."""
    timed = [batch for part in feed.parts for batch in part.fetched]
    fetches = np.array([max(0, batch.fetch_ns - batch.queued_ns) for batch in timed], float) * NS
    if not len(fetches):
        return None
    usual = float(np.median(fetches))
    limit = stats.outlier_limit(fetches, LEAST_RATIO)
    is_slow = fetches > limit
    count = int(is_slow.sum())
    if not LEAST_SLOW <= count <= MOST_SHARE * len(fetches):
        return None
    cpu_s = sum(batch.cpu_ns for batch, slow in zip(timed, is_slow, strict=True) if slow) * NS
    return SlowFetches(
        count=count,
        total=len(fetches),
        seconds=float(np.median(fetches[is_slow])),
        usual_seconds=usual,
        cpu_ratio=min(1.0, cpu_s / float(fetches[is_slow].sum())),
        step=basis.without_fetches_above(limit, usual) if basis else stats.unknown("s", NOT_SIMULATED),
    )
