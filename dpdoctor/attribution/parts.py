"""What a device does while an event runs on it: one of the classes of the time breakdown."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.communication_kernels import communicating
from dpdoctor.trace.columns import UNKNOWN, Kind
from dpdoctor.trace.model import Trace

_TO_DEVICE = r"HtoD|H2D|HostToDevice|(?:Host|Pageable|Pinned) -> Device"


class Part(IntEnum):
    """The classes of the budget, in the order in which they take time; memsets are compute."""

    COMPUTE = 0
    COMM = 1
    H2D = 2
    COPY = 3


def parts(trace: Trace, comm_kernels: str | None = None) -> NDArray[np.int8]:
    """Return int8[n]: the Part of each event of a device, UNKNOWN for events of the host.

    `comm_kernels`: what kernels that communicate are called, too, as a regular expression.
    """
    events = trace.events
    is_kernel, is_copy = events.kind == Kind.KERNEL, events.kind == Kind.MEMCPY
    found = np.full(len(events), UNKNOWN, np.int8)
    found[is_kernel | (events.kind == Kind.MEMSET)] = Part.COMPUTE
    found[communicating(trace, comm_kernels)] = Part.COMM
    found[is_copy] = Part.COPY
    found[is_copy & trace.named(_TO_DEVICE)[events.name]] = Part.H2D
    return found
