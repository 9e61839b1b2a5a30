"""What a device does while an event runs on it: one of the classes of the time breakdown.

A kernel communicates by its name, by the metadata that it carries, or by the host call behind it.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution import marks
from dpdoctor.attribution.callers import host_rows, launches, of_same_id
from dpdoctor.attribution.nesting import is_inside, running_at
from dpdoctor.trace.model import UNKNOWN, Kind, Trace

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]

# Searched for anywhere in a name, in any case: kernels are templates, so the word may stand far from the begin. The
# second line is torch's symmetric memory; not "symm" alone, which is also a matrix product of BLAS. The third is what
# NVSHMEM launches for its host calls, and Transformer Engine's, the last DeepEP, mangled or not: but not
# `cdpsk::ep::CUB_`, which are plain scans.
COMM_KERNEL = (
    r"nccl|rccl|cross_device_reduce|nvshmem|rocshmem|oneccl|msccl|"
    r"symmetric_memory|symm_mem|multimem_|(?:one|two)_shot_all_|"
    r"_on_stream_kernel|userbuffers|"
    r"(?<![a-z])(?:deep_ep|dpsk::ep::|dpsk2ep)"
)
_CALLS = (marks.COMM_CALL, marks.COMM_RECORD, marks.COMM_ANNOTATION)


def named(trace: Trace, pattern: str | None) -> Mask:
    """Return bool[n]: which events are kernels whose name is known, or that `pattern` finds something in."""
    is_named = trace.named(COMM_KERNEL)
    if pattern is not None:
        is_named = is_named | trace.named(pattern)
    return np.asarray((trace.events.kind == Kind.KERNEL) & is_named[trace.events.name])


def communicating(trace: Trace, pattern: str | None) -> Mask:
    """Return bool[n]: which events are kernels that communicate, as far as the trace tells.

    Besides those `named`, what carries the metadata of a collective, and what the host's call of one launched, but not
    what an operator inside of that call did. Others of the same name are alike where nothing else launched any of them.
    """
    found = named(trace, pattern)
    others = np.flatnonzero((trace.events.kind == Kind.KERNEL) & ~found)
    calls = [host_rows(trace, sign) for sign in _CALLS]
    if not len(others) or not (trace.collectives or any(map(len, calls))):
        return found
    launch = launches(trace.events, others)
    is_told = _described(trace)[others] | _launched_by(trace, calls, launch)
    is_told |= (launch == UNKNOWN) & _of_same_record(trace, others)
    names, num = trace.events.name[others], len(trace.names)
    told, launched = (np.bincount(names[which], minlength=num) for which in (is_told, is_told | (launch != UNKNOWN)))
    found[others] = is_told | ((told > 0) & (told == launched))[names]
    return found


def _described(trace: Trace) -> Mask:
    described = np.zeros(len(trace.events), bool)
    described[[c.row for c in trace.collectives if c.name is not None]] = True
    return described


def _of_same_record(trace: Trace, rows: Rows) -> Mask:
    """Return bool[k]: which kernels have the external id of a record of a collective."""
    return np.asarray(of_same_id(trace, rows, host_rows(trace, marks.COMM_RECORD)) != UNKNOWN)


def _launched_by(trace: Trace, calls: list[Rows], launch: Rows) -> Mask:
    """Return bool[k]: which launches are made by one of the calls itself."""
    events = trace.events
    threads, times = np.where(launch == UNKNOWN, UNKNOWN, events.thread[launch]), events.begin_ns[launch]
    is_made: Mask = is_inside(events, np.concatenate(calls), threads, times)
    asked = np.flatnonzero(is_made)
    if len(asked):
        is_made[asked] = ~is_inside(events, _operators_within(trace, calls), threads[asked], times[asked])
    return np.asarray(is_made)


def _operators_within(trace: Trace, calls: list[Rows]) -> Rows:
    """Return the host's operators and annotations that lie in one of the calls and are none themselves."""
    events = trace.events
    host = np.setdiff1d(trace.rows(Kind.CPU_OP, Kind.ANNOTATION), np.concatenate(calls))
    is_within = np.zeros(len(host), bool)
    for rows in calls:
        around = running_at(events, rows, events.thread[host], events.begin_ns[host])
        # Times are in us at best: what is as long as the call may as well be around it.
        is_shorter = events.duration_ns[host] < events.duration_ns[around]
        is_within |= (around != UNKNOWN) & is_shorter & (events.end_ns[host] <= events.end_ns[around])
    return host[is_within]


# Of CUDA, ROCm, and XPU, where pageable memory is M.
_TO_DEVICE = r"HtoD|[HM]2D|HostToDevice|(?:Host|Pageable|Pinned) -> Device"


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
