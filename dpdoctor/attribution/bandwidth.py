"""The bandwidth that collectives reach by their size, and the size below which a call takes as long as an empty one."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.collectives import Collectives
from dpdoctor.attribution.operations import bus_factor
from dpdoctor.digest import CollectiveSize, SmallCalls
from dpdoctor.trace.model import UNKNOWN

# A rank whose every call has its own size (an all-to-all of ragged batches) must not fill the digest.
MAX_SIZES = 300
_Key = tuple[str, str, int, int, str]  # operation, group, ranks, bytes, type
# What a fit needs to mean anything: so many sizes, so far apart, of so many calls each that one of them hardly waited,
# and times that follow the sizes.
_MIN_SIZES = 3
_MIN_CALLS = 3
_MIN_RANGE = 4
_MAX_RMS_ERROR = 0.25
# Of the size at which latency and transfer take alike: below a quarter, four fifths of the time are latency.
_LATENCY_BOUND = 0.25


def collective_sizes(calls: Collectives) -> tuple[CollectiveSize, ...]:
    """Return one entry for each operation, group, size and type, those that took longest first.

    Beyond MAX_SIZES, the rest of each operation is one entry without group, size and type.
    """
    duration = calls.end_ns - calls.begin_ns
    columns = (calls.operations, calls.groups, calls.group_size.tolist(), calls.num_bytes.tolist(), calls.dtypes)
    keys = list(zip(*columns, strict=True))
    rows = _grouped(keys)
    if len(rows) > MAX_SIZES:
        longest = sorted(rows, key=lambda key: int(duration[rows[key]].sum()), reverse=True)
        kept = set(longest[:MAX_SIZES])
        rows = _grouped([key if key in kept else (key[0], "", UNKNOWN, UNKNOWN, "") for key in keys])
    sizes = (_of(key, duration[at], calls.exposed_ns[at]) for key, at in rows.items())
    return tuple(sorted(sizes, key=lambda size: size.total_ns, reverse=True))


def _grouped(keys: list[_Key]) -> dict[_Key, NDArray[np.int64]]:
    """Return the indices of each key."""
    found: defaultdict[_Key, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        found[key].append(index)
    return {key: np.array(indices, np.int64) for key, indices in found.items()}


def _of(key: _Key, duration_ns: NDArray[np.int64], exposed_ns: NDArray[np.int64]) -> CollectiveSize:
    operation, group, group_size, num_bytes, dtype = key
    median = int(np.median(duration_ns))
    algbw = num_bytes / median if num_bytes > 0 and median > 0 else None  # a byte per ns is a GB/s
    factor = bus_factor(operation, group_size)
    return CollectiveSize(
        operation=operation,
        group=group,
        group_size=group_size if group_size > 0 else None,
        num_bytes=num_bytes if num_bytes > 0 else None,
        count=len(duration_ns),
        total_ns=int(duration_ns.sum()),
        exposed_ns=int(exposed_ns.sum()),
        median_ns=median,
        min_ns=int(duration_ns.min()),
        algbw_gb_s=algbw,
        busbw_gb_s=None if algbw is None or factor is None else algbw * factor,
        dtype=dtype,
    )


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
