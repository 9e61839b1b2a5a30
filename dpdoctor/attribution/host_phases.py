"""The phases of a step as the host's clock has them: dpdoctor marks them in the traces that it records."""

from __future__ import annotations

import numpy as np

from dpdoctor.attribution import marks
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.host_steps import HostSteps
from dpdoctor.attribution.intervals import Spans, exclusive, merge, subtract
from dpdoctor.digest import BETWEEN_PHASES, HOST, HOST_PHASES
from dpdoctor.trace.columns import Kind
from dpdoctor.trace.model import Trace


def host_phases(trace: Trace, steps: HostSteps, device: DeviceEvents) -> dict[str, Spans]:
    """Return when the training thread was in each of HOST_PHASES, the rest of the steps being `other`; on a GPU never.

    Of two that are nested it is in the one that comes first in HOST_PHASES: a closure's forward lies in the optimizer.
    What lies between two of them in one step may be of one of them, as BETWEEN_PHASES says.
    """
    if device.index != HOST:
        return {}
    events, annotations = trace.events, trace.rows(Kind.ANNOTATION)
    annotations = annotations[events.thread[annotations] == steps.thread]
    *marked, other = HOST_PHASES
    is_marked = [trace.named(f"{marks.PHASE}{phase}$")[events.name[annotations]] for phase in marked]
    phases = dict(zip(marked, exclusive([merge(events.spans[annotations[rows]]) for rows in is_marked]), strict=True))
    between = _between(phases, steps)
    every = merge(*phases.values())
    phases = {name: merge(spans, subtract(between.get(name, merge()), every)) for name, spans in phases.items()}
    return {**phases, other: subtract(merge(steps.spans), merge(*phases.values()))}


def _between(phases: dict[str, Spans], steps: HostSteps) -> dict[str, Spans]:
    """Return what BETWEEN_PHASES gives to each phase, with what of others lies in it."""
    names = sorted({name for pair in BETWEEN_PHASES for name in pair})
    spans = np.concatenate([phases[name] for name in names])
    of = np.repeat(np.arange(len(names)), [len(phases[name]) for name in names])
    order = np.argsort(spans[:, 0], kind="stable")
    spans, of = spans[order], of[order]
    gaps = np.stack((spans[:-1, 1], spans[1:, 0]), axis=1)
    in_one_step = steps.of(gaps[:, 0]) == steps.of(gaps[:, 1])
    found: dict[str, Spans] = {}
    for (before, after), owner in BETWEEN_PHASES.items():
        is_pair = (of[:-1] == names.index(before)) & (of[1:] == names.index(after)) & in_one_step
        found[owner] = merge(found.get(owner, merge()), gaps[is_pair])
    return found
