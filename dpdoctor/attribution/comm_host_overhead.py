"""What the host does for communication besides communicating, and would not do without it."""

from __future__ import annotations

from dpdoctor.attribution import fsdp_hooks, marks
from dpdoctor.attribution.callers import host_rows
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.intervals import Spans, merge
from dpdoctor.digest import HOST
from dpdoctor.trace.model import Trace


def handling(trace: Trace, device: DeviceEvents, thread: int) -> Spans:
    """Return when any thread copied for DDP or the training thread waited for FSDP; of a GPU nothing: kernels do that.

    Collectives within it are included. What FSDP copies is not: it lays its shards out anew for every pass, whoever
    they come from.
    """
    if device.index != HOST:
        return merge()
    copies = trace.events.spans[host_rows(trace, marks.DDP_HANDLING)]
    return merge(copies, fsdp_hooks.waits(trace, thread), fsdp_hooks.calls(trace, thread))
