"""The calls of a rank as columns, each with what the rank did before it: what other ranks are compared by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from dpdoctor.attribution.breakdown import Occupancy, idle_by_cause, whole_span
from dpdoctor.attribution.collectives import Collectives
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.host_activity import Activity
from dpdoctor.attribution.intervals import Spans, lengths_within, merge
from dpdoctor.attribution.parts import Part
from dpdoctor.attribution.steps import StepWindows
from dpdoctor.digest import HOST, Calls
from dpdoctor.trace.model import UNKNOWN

# With nine columns of at most 20 digits, about 0.5 MB in a digest.
MAX_CALLS = 5_000
NOTHING = "none"  # the call follows on the one before it, or is the first


def calls(found: Collectives, steps: Mapping[int, StepWindows], causes: Mapping[int, Mapping[str, Spans]]) -> Calls:
    """Return the first MAX_CALLS calls; `steps` and `causes` (of `local_causes`) are by device."""
    shown = slice(MAX_CALLS)
    device, begin = found.device[shown], found.begin_ns[shown]
    step, blamed = np.full(len(begin), UNKNOWN, np.int64), np.full(len(begin), NOTHING, object)
    segments = _segments(found)[shown]
    for index in np.unique(device).tolist():
        ours = device == index
        step[ours] = _step_of(begin[ours], steps[index])
        blamed[ours] = _longest(segments[ours], causes[index])
    names, causes_shown = _index((*found.operations[shown], *found.groups[shown])), _index(blamed.tolist())
    return Calls(
        names=tuple(names),
        causes=tuple(causes_shown),
        operation=tuple(names[name] for name in found.operations[shown]),
        group=tuple(names[name] for name in found.groups[shown]),
        seq=tuple(found.seq[shown].tolist()),
        num_bytes=tuple(found.num_bytes[shown].tolist()),
        begin_ns=tuple(begin.tolist()),
        end_ns=tuple(found.end_ns[shown].tolist()),
        exposed_ns=tuple(found.exposed_ns[shown].tolist()),
        step=tuple(step.tolist()),
        segment_cause=tuple(causes_shown[cause] for cause in blamed.tolist()),
        num_dropped=len(found) - len(begin),
    )


def local_causes(
    device: DeviceEvents,
    used: Occupancy,
    idle: Mapping[str, Spans],
    activities: Mapping[int, Activity],
    training_thread: int,
) -> dict[str, Spans]:
    """Return when a rank did what besides communicating, as disjoint sets of times by cause.

    A device computes, copies, or is `idle` for one of IDLE_CAUSES. A host without devices is asked what its training
    thread did, an operator inside of the loader being the loader's; what remains is "compute".
    """
    if device.index == HOST:
        host = idle_by_cause(whole_span(device), device, activities, training_thread)
        return {"compute" if cause == "dispatch" else cause: spans for cause, spans in host.items()}
    return {
        "compute": used.exclusive[Part.COMPUTE],
        "copy": merge(used.exclusive[Part.H2D], used.exclusive[Part.COPY]),
        **idle,
    }


def _segments(found: Collectives) -> Spans:
    """Return int64[n, 2]: from the end of all earlier calls to the begin of each; empty where one still runs."""
    ended = np.maximum.accumulate(found.end_ns)
    before = np.concatenate((found.begin_ns[:1], ended[:-1]))
    return np.stack((np.minimum(before, found.begin_ns), found.begin_ns), axis=1)


def _step_of(times: NDArray[np.int64], windows: StepWindows) -> NDArray[np.int64]:
    at = np.searchsorted(windows.spans[:, 0], times, side="right") - 1
    ends = np.append(windows.spans[:, 1], times.min())  # of no step: before every time
    return np.where((at >= 0) & (times < ends[at]), np.append(windows.numbers, UNKNOWN)[at], UNKNOWN)


def _longest(segments: Spans, causes: Mapping[str, Spans]) -> NDArray[np.object_]:
    """Return the cause that lasts longest in each segment."""
    names = np.array([NOTHING, *causes], object)
    lengths = np.stack([np.zeros(len(segments)), *(lengths_within(spans, segments) for spans in causes.values())])
    return np.asarray(names[np.argmax(lengths, axis=0)])


def _index(names: Iterable[str]) -> dict[str, int]:
    return {name: index for index, name in enumerate(dict.fromkeys(names))}
