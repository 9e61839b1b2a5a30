"""The phases of a step as the host's clock has them: dpdoctor marks them in the traces that it records."""

from __future__ import annotations

from dpdoctor.attribution import marks
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.host_steps import HostSteps
from dpdoctor.attribution.intervals import Spans, exclusive, merge, subtract
from dpdoctor.digest import HOST, HOST_PHASES
from dpdoctor.trace.columns import Kind
from dpdoctor.trace.model import Trace


def host_phases(trace: Trace, steps: HostSteps, device: DeviceEvents) -> dict[str, Spans]:
    """Return when the training thread was in each of HOST_PHASES, the rest of the steps being `other`; on a GPU never.

    Of two that are nested it is in the one that comes first in HOST_PHASES: a closure's forward lies in the optimizer.
    """
    if device.index != HOST:
        return {}
    events, annotations = trace.events, trace.rows(Kind.ANNOTATION)
    annotations = annotations[events.thread[annotations] == steps.thread]
    *marked, other = HOST_PHASES
    is_marked = [trace.named(f"{marks.PHASE}{phase}$")[events.name[annotations]] for phase in marked]
    phases = exclusive([merge(events.spans[annotations[rows]]) for rows in is_marked])
    return {**dict(zip(marked, phases, strict=True)), other: subtract(merge(steps.spans), merge(*phases))}
