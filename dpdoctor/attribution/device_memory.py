"""The most memory that a device held, from the allocator's events."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdoctor.digest import HOST
from dpdoctor.trace.columns import UNKNOWN
from dpdoctor.trace.model import Trace


def peak_bytes(trace: Trace, index: int) -> tuple[int | None, int | None]:
    """Return the most bytes (allocated, reserved) on a device; None where the trace does not say it.

    The HOST's are None: its allocator counts only what was allocated while recording, which is not what was in use.
    """
    if index == HOST:
        return None, None
    ours = trace.memory.device == index
    return _peak(trace.memory.allocated_bytes[ours]), _peak(trace.memory.reserved_bytes[ours])


def _peak(values: NDArray[np.int64]) -> int | None:
    known = values[values != UNKNOWN]
    return int(known.max()) if len(known) else None
