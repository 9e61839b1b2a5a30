"""The communication of a rank by operation, group and size, with its bandwidths."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.comm.collective_names import bus_factor
from dpdoctor.attribution.comm.collectives import Collectives
from dpdoctor.digest import CollectiveSize
from dpdoctor.trace.columns import UNKNOWN

# A rank whose every call has its own size (an all-to-all of ragged batches) must not fill the digest.
MAX_SIZES = 300
_Key = tuple[str, str, int, int, str]  # operation, group, ranks, bytes, type


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
