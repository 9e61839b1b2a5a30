"""Where a thread waits for collectives: in hooks of fully_shard, in operators that call them, and where it asks to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution import marks
from dpdoctor.attribution.callers import host_rows
from dpdoctor.attribution.intervals import Spans, contains, intersect, lengths_within, merge, subtract
from dpdoctor.trace.model import Kind, Trace


def waits(trace: Trace, thread: int) -> Spans:
    """Return when a thread was in a hook and in no operator that it called, waited for a functional collective, or was
    in an operator that called one and in no other, until it ended.

    In a backward pass the engine's own operators hold the hooks: they are no computing then. Of a device nobody waits
    here: work for it is queued.
    """
    hooks, called = _hooks(trace, thread)
    events, operators = trace.events, trace.rows(Kind.CPU_OP)
    is_wait = trace.named(marks.WAIT)[events.name[operators]] & (events.thread[operators] == thread)
    in_hooks = subtract(hooks, merge(events.spans_of(called)))
    return merge(in_hooks, events.spans_of(operators[is_wait]), _in_callers(trace, thread))


def _in_callers(trace: Trace, thread: int) -> Spans:
    """Return when a thread was in operators that hold calls of c10d, as autograd functions do, and in none inside.

    Only collectives that ended there, too, were waited for: DDP's hooks just begin theirs. Of functional ones it is
    known where they are waited for, and compiled regions that hold them compute.
    """
    events, operators = trace.events, trace.rows(Kind.CPU_OP)
    collectives = events.spans_of(host_rows(trace, marks.HOST_COMM))
    if not len(collectives):
        return merge()
    operators = operators[(events.thread[operators] == thread) & ~trace.named(marks.OF_LOOP)[events.name[operators]]]
    begin_ns, name = events.begin_ns[operators], events.name[operators]
    is_call = trace.named(marks.COMM_CALL)[name]
    functional = merge(events.spans_of(operators[trace.named(marks.FUNCTIONAL)[name]]))
    called_ns = np.sort(begin_ns[is_call & ~contains(functional, begin_ns)])
    num_before = np.searchsorted(called_ns, np.stack((begin_ns, events.end_ns[operators])))
    is_holder = ~is_call & (num_before[1] > num_before[0])
    holders, others = merge(events.spans_of(operators[is_holder])), merge(events.spans_of(operators[~is_holder]))
    is_held = lengths_within(holders, collectives) == collectives[:, 1] - collectives[:, 0]
    return intersect(subtract(holders, others), merge(collectives[is_held]))


def calls(trace: Trace, thread: int) -> Spans:
    """Return when a hook was starting collectives on a thread."""
    _, called = _hooks(trace, thread)
    return merge(trace.events.spans_of(called[trace.named(marks.COMM_CALL)[trace.events.name[called]]]))


def _hooks(trace: Trace, thread: int) -> tuple[Spans, NDArray[np.int64]]:
    """Return when a thread was in hooks, and the rows of the operators that began there."""
    events, annotations = trace.events, trace.rows(Kind.ANNOTATION)
    is_hook = trace.named(marks.FSDP_HOOK)[events.name[annotations]] & (events.thread[annotations] == thread)
    hooks = merge(events.spans_of(annotations[is_hook]))
    operators = trace.rows(Kind.CPU_OP)
    operators = operators[events.thread[operators] == thread]
    return hooks, operators[contains(hooks, events.begin_ns[operators])]
