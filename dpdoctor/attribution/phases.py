"""The phases of a step: as the host's clock has them, and what a device was busy for, by what launched its work."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution import marks
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.host_steps import HostSteps
from dpdoctor.attribution.intervals import Spans, contains, exclusive, merge, subtract
from dpdoctor.attribution.parts import Part
from dpdoctor.digest import BETWEEN_PHASES, HOST, HOST_PHASES, PHASES
from dpdoctor.trace.columns import Kind
from dpdoctor.trace.model import Trace

_FORWARD, _BACKWARD, _OPTIMIZER, _OTHER = range(len(PHASES))


def host_phases(trace: Trace, steps: HostSteps, device: DeviceEvents) -> dict[str, Spans]:
    """Return `marked_phases` where the host is what computes; nothing on a GPU."""
    return marked_phases(trace, steps) if device.index == HOST else {}


def marked_phases(trace: Trace, steps: HostSteps) -> dict[str, Spans]:
    """Return when the training thread was in each of HOST_PHASES, the rest of the steps being `other`.

    Of two that are nested it is in the one that comes first in HOST_PHASES: a closure's forward lies in the optimizer.
    What lies between two of them in one step may be of one of them, as BETWEEN_PHASES says.
    """
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


def busy_by_phase(trace: Trace, steps: HostSteps, device: DeviceEvents) -> dict[str, Spans]:
    """Return when the device was busy for each of PHASES; they are disjoint, and add up to its busy time.

    Backward is what autograd launched, optimizer what an optimizer's step did. Forward is the rest that was launched in
    a step before the last of its backward, except copies to the device and what the loader or zero_grad launched.
    """
    phase = _phases(trace, steps, device)
    sets = [merge(device.events.spans[phase == number]) for number in range(len(PHASES))]
    return dict(zip(PHASES, exclusive(sets), strict=True))


def _phases(trace: Trace, steps: HostSteps, device: DeviceEvents) -> NDArray[np.int8]:
    """Return int8[n]: index into PHASES."""
    called, thread = device.call_begin_ns, device.call_thread
    is_backward = _launched_within(trace, device, marks.BACKWARD)
    # Threads of autograd run nothing else: what is launched between two nodes is backward as well (hooks).
    is_backward |= (thread != steps.thread) & np.isin(thread, np.unique(thread[is_backward]))
    step = steps.of(called)
    last_backward = np.full(len(steps.numbers) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last_backward, step[is_backward], called[is_backward])
    last_backward[last_backward == np.iinfo(np.int64).min] = np.iinfo(np.int64).max  # an evaluation is all forward
    is_forward = (step != -1) & (called < last_backward[step]) & (device.part != Part.H2D)
    phase = np.where(is_forward, _FORWARD, _OTHER).astype(np.int8)
    phase[_launched_within(trace, device, f"{marks.ZERO_GRAD}|{marks.LOADER}")] = _OTHER
    phase[is_backward] = _BACKWARD
    phase[_launched_within(trace, device, marks.OPTIMIZER_STEP)] = _OPTIMIZER
    return phase


def _launched_within(trace: Trace, device: DeviceEvents, pattern: str) -> NDArray[np.bool_]:
    """Return bool[n]: what was launched inside of a host span of such a name on the launching thread."""
    rows = trace.rows(Kind.CPU_OP, Kind.ANNOTATION)
    rows = rows[trace.named(pattern)[trace.events.name[rows]]]
    found = np.zeros(len(device.rows), bool)
    for thread in np.unique(trace.events.thread[rows]).tolist():
        ours = rows[trace.events.thread[rows] == thread]
        asked = np.flatnonzero(device.call_thread == thread)
        found[asked] = contains(merge(trace.events.spans[ours]), device.call_begin_ns[asked])
    return found
