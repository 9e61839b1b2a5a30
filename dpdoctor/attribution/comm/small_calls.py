"""Collectives that are too small: their time is latency, which many of them add up."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.comm.collectives import Collectives
from dpdoctor.digest import SmallCalls

# What a fit needs to mean anything: so many sizes, so far apart, of so many calls each that one of them hardly waited,
# and times that follow the sizes.
_MIN_SIZES = 3
_MIN_CALLS = 3
_MIN_RANGE = 4
_MAX_RMS_ERROR = 0.25
# Of the size at which latency and transfer take alike: below a quarter, four fifths of the time are latency.
_LATENCY_BOUND = 0.25


def small_calls(found: Collectives) -> tuple[SmallCalls, ...]:
    """Return which calls are latency-bound, for each operation and group whose times tell it.

    The shortest call of each size is fitted by latency + bytes / bandwidth. It may have waited for peers all the same,
    so that the latency is an upper bound. Where sizes are few or alike, or time does not follow them, nothing is said.
    """
    groups: defaultdict[tuple[str, str, int], list[int]] = defaultdict(list)
    keys = zip(found.operations, found.groups, found.group_size.tolist(), strict=True)
    for index, key in enumerate(keys):
        if found.num_bytes[index] > 0 and found.end_ns[index] > found.begin_ns[index]:
            groups[key].append(index)
    judged = (_judged(found, operation, group, np.array(at)) for (operation, group, _), at in groups.items())
    return tuple(entry for entry in judged if entry is not None)


def _judged(found: Collectives, operation: str, group: str, calls: NDArray[np.int64]) -> SmallCalls | None:
    num_bytes, duration = found.num_bytes[calls], (found.end_ns - found.begin_ns)[calls]
    line = _fitted(num_bytes, duration)
    if line is None:
        return None
    latency_ns, ns_per_byte = line
    limit = int(_LATENCY_BOUND * latency_ns / ns_per_byte)
    is_small = num_bytes < limit
    return SmallCalls(
        operation=operation,
        group=group,
        latency_ns=int(latency_ns),
        bandwidth_gb_s=1 / ns_per_byte,
        limit_bytes=limit,
        count=len(calls),
        small_count=int(np.count_nonzero(is_small)),
        small_total_ns=int(duration[is_small].sum()),
        small_exposed_ns=int(found.exposed_ns[calls][is_small].sum()),
    )


def _fitted(num_bytes: NDArray[np.int64], duration_ns: NDArray[np.int64]) -> tuple[float, float] | None:
    """Return latency and ns per byte, fitted with relative errors to the shortest call of each size; None: unfit."""
    sizes, which, counts = np.unique(num_bytes, return_inverse=True, return_counts=True)
    shortest = np.full(len(sizes), np.inf)
    np.minimum.at(shortest, which, duration_ns)
    sizes, shortest = sizes[counts >= _MIN_CALLS], shortest[counts >= _MIN_CALLS]
    if len(sizes) < _MIN_SIZES or sizes[-1] < _MIN_RANGE * sizes[0]:
        return None
    terms = np.stack((1 / shortest, sizes / shortest), axis=1)
    line, *_ = np.linalg.lstsq(terms, np.ones(len(sizes)), rcond=None)
    error = terms @ line - 1
    if line.min() <= 0 or np.sqrt(np.mean(error**2)) > _MAX_RMS_ERROR:
        return None
    return float(line[0]), float(line[1])
