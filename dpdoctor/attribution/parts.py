"""What a device does while an event runs on it: one of the classes of the time budget."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from dpdoctor.trace.columns import UNKNOWN, Kind
from dpdoctor.trace.model import Trace

# Searched for anywhere in a name, in any case: kernels are templates, so the word may stand far from the begin. The
# last line is torch's symmetric memory; not "symm" alone, which is also a matrix product of BLAS.
COMM_KERNEL = (
    r"nccl|rccl|cross_device_reduce|nvshmem|oneccl|msccl|deep_ep|"
    r"symmetric_memory|symm_mem|multimem_|(?:one|two)_shot_all_"
)
_TO_DEVICE = r"HtoD|H2D|HostToDevice|(?:Host|Pageable|Pinned) -> Device"


class Part(IntEnum):
    """The classes of the budget, in the order in which they take time; memsets are compute."""

    COMPUTE = 0
    COMM = 1
    H2D = 2
    COPY = 3


def parts(trace: Trace) -> NDArray[np.int8]:
    """Return int8[n]: the Part of each event of a device, UNKNOWN for events of the host."""
    events = trace.events
    is_kernel, is_copy = events.kind == Kind.KERNEL, events.kind == Kind.MEMCPY
    found = np.full(len(events), UNKNOWN, np.int8)
    found[is_kernel | (events.kind == Kind.MEMSET)] = Part.COMPUTE
    found[is_kernel & (trace.named(COMM_KERNEL)[events.name] | _described_as_collective(trace))] = Part.COMM
    found[is_copy] = Part.COPY
    found[is_copy & trace.named(_TO_DEVICE)[events.name]] = Part.H2D
    return found


def _described_as_collective(trace: Trace) -> NDArray[np.bool_]:
    """Return bool[n]: which events carry the metadata of a collective, whatever their name."""
    described = np.zeros(len(trace.events), bool)
    described[[c.row for c in trace.collectives if c.name is not None]] = True
    return described
