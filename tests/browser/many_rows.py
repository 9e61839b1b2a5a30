"""A trace with enough rows to sort and to filter, whose times and sizes are of every magnitude."""

from __future__ import annotations

from msgspec.structs import replace

from dpdoctor.analysis import Analysis
from dpdoctor.digest import NamedTime
from tests.builders import traced_runs

US = 1_000
# In no order, neither of totals nor of means nor of calls.
TOTALS_US = (950, 1_200_000, 30_000, 47, 300_000_000, 8_100, 2_000, 95, 61_000, 7, 5_300_000, 440)
CALLS = (3, 1, 12, 47, 2_000, 9, 1, 5, 61, 7, 53, 2)
SIZES = (None, 9, 2_000, 41_000, 8, 7_000_000, 512, 65_536, 3, 90_000_000, 1_024, 77)


def many_rows() -> Analysis:
    """Return the trace of one rank with a dozen kernels and collectives, of which one has no known size."""
    (digest,) = traced_runs.late_rank(1, 0)
    kernels = tuple(
        NamedTime(name=f"{'odd' if place % 2 else 'even'}_kernel_{place}", count=calls, total_ns=total * US, device=0)
        for place, (calls, total) in enumerate(zip(CALLS, TOTALS_US, strict=True))
    )
    sizes = tuple(
        traced_runs.size("all_reduce" if place % 2 else "all_gather", size, total_ns=total * US, exposed_ns=0)
        for place, (size, total) in enumerate(zip(SIZES, TOTALS_US, strict=True))
    )
    return traced_runs.trace_run(replace(digest, kernels=kernels, collectives=sizes))
