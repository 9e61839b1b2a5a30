"""Which host events made each communication event: the launch, and torch's operator and annotation around it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution import marks
from dpdoctor.attribution.launches import matching
from dpdoctor.attribution.nesting import running_at
from dpdoctor.attribution.queues import queued_by
from dpdoctor.trace.columns import UNKNOWN, Kind
from dpdoctor.trace.model import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """Rows of the host events that made n communication events, int64[n] each; UNKNOWN where the trace has none.

    Attributes:
        operator: of c10d.
        record: the operator that carries the metadata of NCCL.
        annotation: of the backend (nccl:all_reduce); on gloo the communication event itself is one.
        outermost: the first of operator, record, annotation and the launching call of the runtime that there is.
    """

    operator: NDArray[np.int64]
    record: NDArray[np.int64]
    annotation: NDArray[np.int64]
    outermost: NDArray[np.int64]


def callers(trace: Trace, rows: NDArray[np.int64], launch: NDArray[np.int64]) -> Callers:
    """Return who made these communication events, which are in the order of their begin.

    Of a kernel: the events around its launch, on the launching thread; with an unknown launch, the record of the same
    external id. Of a span of the host: the operator of c10d that queued it.
    """
    events = trace.events
    is_kernel = events.kind[rows] == Kind.KERNEL
    signs = (marks.COMM_CALL, marks.COMM_RECORD, marks.COMM_ANNOTATION)
    operators, records, annotations = (host_rows(trace, sign) for sign in signs)
    launch = np.where(is_kernel, launch, UNKNOWN)
    origin = np.where(launch == UNKNOWN, of_same_id(trace, rows, records), launch)
    threads, times = np.where(origin == UNKNOWN, UNKNOWN, events.thread[origin]), events.begin_ns[origin]
    operator = running_at(events, operators, threads, times)
    operator[~is_kernel] = queued_by(trace, rows[~is_kernel], operators)
    record = running_at(events, records, threads, times)
    annotation = running_at(events, annotations, threads, times)
    outermost = launch
    for found in (annotation, record, operator):
        outermost = np.where(found == UNKNOWN, outermost, found)
    return Callers(operator=operator, record=record, annotation=annotation, outermost=outermost)


def host_rows(trace: Trace, pattern: str) -> NDArray[np.int64]:
    """Return the rows of the host's operators and annotations whose name the pattern finds something in."""
    rows = trace.rows(Kind.CPU_OP, Kind.ANNOTATION)
    return rows[trace.named(pattern)[trace.events.name[rows]]]


def of_same_id(trace: Trace, rows: NDArray[np.int64], host: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which of the host's rows has the external id of each row, else UNKNOWN.

    Old exporters write the correlation in its place, which is no operator's id.
    """
    events = trace.events
    ids = events.external[rows]
    return matching(host, events.external[host], np.where(ids == events.correlation[rows], UNKNOWN, ids))
