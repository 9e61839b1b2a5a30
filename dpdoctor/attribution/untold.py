"""Whether a trace tells where the time went at all: one that is cut short does not, nor one that lacks the device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpdoctor import units
from dpdoctor.attribution import marks
from dpdoctor.attribution.host_events import host_rows
from dpdoctor.trace.model import ON_DEVICE, UNKNOWN, Kind, Trace

# Of a call that starts something on a device, whatever the runtime: cudaLaunchKernel, hipGraphLaunch,
# urEnqueueKernelLaunch.
_LAUNCH = r"Launch"


def why_untold(trace: Trace) -> str | None:
    """Return in a clause why the trace does not tell where the time went; None: it does, or holds nothing at all.

    Exporters write operators first, thread by thread, then devices, buffer by buffer: what is missing of a file that is
    cut short may be of any step, and all that a device did.
    """
    if is_cut(trace):
        return "the file is not whole, and what is missing of it may be of any step and of any device"
    rows = trace.rows(*ON_DEVICE)
    if (trace.events.device[rows] != UNKNOWN).any():
        return None
    sign = next(_signs_of_device(trace), None)
    return None if sign is None else f"{sign}, and the trace does not hold what ran on a device"


def is_cut(trace: Trace) -> bool:
    """Return whether events are missing from the trace's file."""
    return trace.damage is not None and not trace.damage.behind_events


def _signs_of_device(trace: Trace) -> Iterator[str]:
    """Yield in a clause what shows that the host did not compute by itself."""
    if trace.unread:
        yield f"there are events that dpdoctor does not read ({', '.join(trace.unread)})"
    if num := len(trace.rows(*ON_DEVICE)):
        yield f"of {units.count(num, 'event')} of devices none says of which"
    if num := int(np.count_nonzero(trace.named(_LAUNCH)[trace.events.name[trace.rows(Kind.RUNTIME)]])):
        yield f"the host launched {units.count(num, 'kernel')}"
    if len(host_rows(trace, marks.COMM_ANNOTATION)):
        yield "a backend for devices communicates"
    if (trace.memory.device != UNKNOWN).any():
        yield "memory of a device was allocated"
