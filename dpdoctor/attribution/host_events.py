"""Which of the host's events made what a trace shows: what launched or queued it, and what ran around that."""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import islice

import msgspec
import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution import marks
from dpdoctor.attribution.intervals import contains, merge
from dpdoctor.attribution.operations import may_be, operations_of
from dpdoctor.trace.model import UNKNOWN, Events, Kind, Trace


class Callers(msgspec.Struct, frozen=True, kw_only=True):
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


# gloo makes a reduce-scatter of an all-reduce.
_DONE_BY = {"reduce_scatter": "all_reduce"}
# The backend takes calls in order, but its threads begin them side by side: neighbours may change places.
_LOOKAHEAD = 8


def queued_by(trace: Trace, spans: NDArray[np.int64], operators: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n]: for each span, in the order of begin, the row of the operator that queued it; UNKNOWN: none.

    It is the first call not yet taken that began before the span, has its operation and, where both are said, its
    size. A span queued before the recording takes none, unless a like call followed before it began.
    """
    found = np.full(len(spans), UNKNOWN, np.int64)
    if not len(spans):
        return found
    events, bytes_of = trace.events, {c.row: c.in_bytes for c in trace.collectives}
    operators = _innermost(trace, operators)
    operations = operations_of(trace, spans, operators)
    waiting: defaultdict[str, deque[int]] = defaultdict(deque)
    for row in operators[np.argsort(events.begin_ns[operators], kind="stable")].tolist():
        waiting[_DONE_BY.get(operations[row], operations[row])].append(row)
    for index, span in enumerate(spans.tolist()):
        queue = waiting[operations[span]]
        for place, row in enumerate(islice(queue, _LOOKAHEAD)):
            if events.begin_ns[row] > events.begin_ns[span]:
                break
            if may_be(operations[row], bytes_of.get(span), bytes_of.get(row)):
                found[index] = row
                del queue[place]
                break
    return found


def _innermost(trace: Trace, operators: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the calls without functional ones, where each has one of c10d's inside that stands for it."""
    is_functional = trace.named(marks.FUNCTIONAL)[trace.events.name[operators]]
    return operators if is_functional.all() else operators[~is_functional]


def launches(events: Events, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n]: the row of the runtime call with the correlation of each device event; UNKNOWN: none."""
    calls = np.flatnonzero((events.kind == Kind.RUNTIME) & (events.correlation != UNKNOWN))
    return matching(calls, events.correlation[calls], events.correlation[rows])


def of_same_id(trace: Trace, rows: NDArray[np.int64], host: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which of the host's rows has the external id of each row, else UNKNOWN.

    Old exporters write the correlation in its place, which is no operator's id.
    """
    events = trace.events
    ids = events.external[rows]
    return matching(host, events.external[host], np.where(ids == events.correlation[rows], UNKNOWN, ids))


def matching(rows: NDArray[np.int64], keys: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n]: the first row with each key that is asked for; UNKNOWN: none has it, or it is UNKNOWN itself."""
    if not len(rows):
        return np.full(len(asked), UNKNOWN, np.int64)
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], asked), len(keys) - 1)
    found = rows[order[at]]
    return np.where((keys[order[at]] == asked) & (asked != UNKNOWN), found, UNKNOWN)


def host_rows(trace: Trace, pattern: str) -> NDArray[np.int64]:
    """Return the rows of the host's operators and annotations whose name the pattern finds something in."""
    rows = trace.rows(Kind.CPU_OP, Kind.ANNOTATION)
    return rows[trace.named(pattern)[trace.events.name[rows]]]


_Integers = NDArray[np.int64]


def running_at(events: Events, rows: _Integers, threads: NDArray[np.int32], times: _Integers) -> _Integers:
    """Return int64[n]: for each thread and time, which of these rows runs there then; UNKNOWN: none.

    The rows must not nest in one another on one thread; where they do, only the one begun last is looked at.
    """
    begin, end, asked = _keys(events, rows, threads, times)
    order = np.argsort(begin, kind="stable")
    last = np.concatenate(([UNKNOWN], order))[np.searchsorted(begin[order], asked, side="right")]
    runs = (last != UNKNOWN) & (asked < np.append(end, 0)[last])
    return np.where(runs, np.append(rows, UNKNOWN)[last], UNKNOWN)


def is_inside(events: Events, rows: _Integers, threads: NDArray[np.int32], times: _Integers) -> NDArray[np.bool_]:
    """Return bool[n]: whether any of these rows, which may nest, runs on each thread at each time."""
    found = np.zeros(len(times), bool)
    for thread in np.unique(events.thread[rows]).tolist():
        asked = np.flatnonzero(threads == thread)
        found[asked] = contains(merge(events.spans_of(rows[events.thread[rows] == thread])), times[asked])
    return found


def _keys(events: Events, rows: _Integers, threads: NDArray[np.int32], times: _Integers) -> list[_Integers]:
    """Return numbers for the begins and ends of the rows and for the times asked for, ordered by thread, then time."""
    columns = (events.begin_ns[rows], events.end_ns[rows], times)
    on = np.concatenate((events.thread[rows], events.thread[rows], threads)).astype(np.int64)
    _, rank = np.unique(np.concatenate(columns), return_inverse=True)
    return np.split(on * len(on) + rank, (len(rows), 2 * len(rows)))


def self_times(begin_ns: _Integers, end_ns: _Integers) -> _Integers:
    """Return int64[n]: the duration of each event of one thread less those of the events directly inside of it.

    Events are given in any order; of two alike, the first holds the second. Where an event outlasts the one that holds
    it, because times were rounded, only what lies inside is taken off.
    """
    order = np.lexsort((-end_ns, begin_ns))
    order = order[begin_ns[order] < end_ns[order]]  # an empty event neither has time nor takes any
    begin, end = begin_ns[order], end_ns[order]
    inner = _holders(begin, end)
    held = np.flatnonzero(inner >= 0)
    holder = inner[held]
    taken = np.maximum(np.minimum(end[held], end[holder]) - begin[held], 0)
    own = np.zeros(len(begin_ns), np.int64)
    own[order] = end - begin
    np.subtract.at(own, order[holder], taken)
    return np.maximum(own, 0)


def _holders(begin: _Integers, end: _Integers) -> _Integers:
    """Return which event directly holds each, of events sorted by begin, the longer first; -1: none does."""
    position = np.arange(len(begin))
    depth = position - np.searchsorted(np.sort(end), begin, side="right")
    # By depth, and within a depth by begin: the holder is the last one before, one level up.
    key = depth * len(begin) + position
    by_depth = np.argsort(key)
    found = np.searchsorted(key[by_depth], key - len(begin)) - 1
    return np.where(depth > 0, by_depth[found], -1)
