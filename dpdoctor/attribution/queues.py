"""Which operator queued each span of a backend that communicates on host threads of its own."""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.collective_names import operations_of
from dpdoctor.attribution.tensor_bytes import may_be
from dpdoctor.trace.columns import UNKNOWN
from dpdoctor.trace.model import Trace

# gloo makes a reduce-scatter of an all-reduce.
_DONE_BY = {"reduce_scatter": "all_reduce"}
# The backend takes calls in order, but its threads begin them side by side: neighbours may change places.
_LOOKAHEAD = 8


def queued_by(trace: Trace, spans: NDArray[np.int64], operators: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n]: for each span, in the order of begin, the row of the operator that queued it; UNKNOWN: none.

    It is the first call not yet taken that began before the span, has its operation and, where both are said, its
    size. A span queued before the recording takes none, unless a like call followed before it began.
    """
    events, bytes_of = trace.events, {c.row: c.in_bytes for c in trace.collectives}
    operations = operations_of(trace, spans, operators)
    waiting: defaultdict[str, deque[int]] = defaultdict(deque)
    for row in operators[np.argsort(events.begin_ns[operators], kind="stable")].tolist():
        waiting[_DONE_BY.get(operations[row], operations[row])].append(row)
    found = np.full(len(spans), UNKNOWN, np.int64)
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
