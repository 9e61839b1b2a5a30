"""What the host does for communication besides communicating: it flattens, copies into buckets and out of them."""

from __future__ import annotations

from dpdoctor.attribution import marks
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.intervals import Spans, merge
from dpdoctor.digest import HOST
from dpdoctor.trace.columns import Kind
from dpdoctor.trace.model import Trace


def handling(trace: Trace, device: DeviceEvents) -> Spans:
    """Return when any thread did that, calls of collectives within it included; of a GPU nothing, where kernels do."""
    if device.index != HOST:
        return merge()
    rows = trace.rows(Kind.CPU_OP, Kind.ANNOTATION)
    return merge(trace.events.spans[rows[trace.named(marks.COMM_HANDLING)[trace.events.name[rows]]]])
