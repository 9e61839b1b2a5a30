"""Where a thread waits for collectives: in the hooks of fully_shard beside their operators, and where it asks to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution import marks
from dpdoctor.attribution.intervals import Spans, contains, merge, subtract
from dpdoctor.trace.columns import Kind
from dpdoctor.trace.model import Trace


def waits(trace: Trace, thread: int) -> Spans:
    """Return when a thread was in a hook and in no operator that it called, or waited for a functional collective.

    In a backward pass the engine's own operators hold the hooks: they are no computing then. Of a device nobody waits
    here: work for it is queued.
    """
    hooks, called = _hooks(trace, thread)
    events, operators = trace.events, trace.rows(Kind.CPU_OP)
    is_wait = trace.named(marks.WAIT)[events.name[operators]] & (events.thread[operators] == thread)
    in_hooks = subtract(hooks, merge(events.spans[called]))
    return merge(np.concatenate((in_hooks, events.spans[operators[is_wait]])))


def calls(trace: Trace, thread: int) -> Spans:
    """Return when a hook was starting collectives on a thread."""
    _, called = _hooks(trace, thread)
    return merge(trace.events.spans[called[trace.named(marks.COMM_CALL)[trace.events.name[called]]]])


def _hooks(trace: Trace, thread: int) -> tuple[Spans, NDArray[np.int64]]:
    """Return when a thread was in hooks, and the rows of the operators that began there."""
    events, annotations = trace.events, trace.rows(Kind.ANNOTATION)
    is_hook = trace.named(marks.FSDP_HOOK)[events.name[annotations]] & (events.thread[annotations] == thread)
    hooks = merge(events.spans[annotations[is_hook]])
    operators = trace.rows(Kind.CPU_OP)
    operators = operators[events.thread[operators] == thread]
    return hooks, operators[contains(hooks, events.begin_ns[operators])]
