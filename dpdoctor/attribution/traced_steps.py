"""A few usual steps as a timeline: what the host and each device did when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from dpdoctor.attribution import marks
from dpdoctor.attribution.device_events import DeviceEvents
from dpdoctor.attribution.devices import marked_phases
from dpdoctor.attribution.intervals import Spans, clip, merge
from dpdoctor.attribution.parts import Part
from dpdoctor.attribution.steps import HostSteps, step_windows
from dpdoctor.digest import HOST, OPERATORS, Lane, TracedStep
from dpdoctor.trace.model import Kind, Trace

# Several, so that ranks that are compared are likely to have kept one of the same number.
MOST_STEPS = 5
# No screen shows finer gaps; a lane has at most so many spans.
FINEST = 600
_WHAT = {Part.COMPUTE: "compute", Part.COMM: "comm", Part.H2D: "h2d", Part.COPY: "copy"}


class _Track(msgspec.Struct, frozen=True, kw_only=True):
    """A lane over the whole trace, and by step where it is cut."""

    device: int
    what: str
    spans: Spans
    cut: dict[int, tuple[int, int]]


def traced_steps(trace: Trace, steps: HostSteps, observed: Sequence[DeviceEvents]) -> tuple[TracedStep, ...]:
    """Return the whole steps that are nearest to their median length, by number; empty where none is whole.

    A step's host lanes are cut at the host's begin and end of it, a device's lanes at the device's.
    """
    if not observed:
        return ()
    windows = step_windows(steps, observed[0])
    if not len(windows.numbers):
        return ()
    lasted = windows.spans[:, 1] - windows.spans[:, 0]
    nearest = np.argsort(np.abs(lasted - np.median(lasted)), kind="stable")[:MOST_STEPS]
    tracks = [*_host(trace, steps, observed[0].index), *(track for one in observed for track in _device(steps, one))]
    return tuple(_step(number, tracks) for number in sorted(windows.numbers[nearest].tolist()))


def _host(trace: Trace, steps: HostSteps, first_device: int) -> Iterator[_Track]:
    """Yield what the training thread was at: the phases that the trace marks, else where it ran operators."""
    cut = dict(zip(steps.numbers.tolist(), map(tuple, steps.spans.tolist()), strict=True))
    *marked, other = marked_phases(trace, steps).items()
    if any(len(spans) for _, spans in marked):
        for what, spans in (*marked, other):
            yield _Track(device=HOST, what=what, spans=spans, cut=cut)
    elif first_device != HOST:
        rows = trace.rows(Kind.CPU_OP, Kind.RUNTIME)
        rows = rows[(trace.events.thread[rows] == steps.thread) & ~trace.named(marks.OF_LOOP)[trace.events.name[rows]]]
        yield _Track(device=HOST, what=OPERATORS, spans=merge(trace.events.spans_of(rows)), cut=cut)


def _device(steps: HostSteps, device: DeviceEvents) -> Iterator[_Track]:
    windows = step_windows(steps, device)
    cut = dict(zip(windows.numbers.tolist(), map(tuple, windows.spans.tolist()), strict=True))
    for part, what in _WHAT.items():
        spans = merge(device.events.spans_of(device.part == part))
        if len(spans):
            yield _Track(device=device.index, what=what, spans=spans, cut=cut)


def _step(number: int, tracks: Sequence[_Track]) -> TracedStep:
    ours = [(track, *track.cut[number]) for track in tracks if number in track.cut]
    begin, end = min(begin for _, begin, _ in ours), max(end for _, _, end in ours)
    finest = (end - begin) // FINEST
    cut = ((track, clip(track.spans, first, last)) for track, first, last in ours)
    return TracedStep(
        step=number,
        begin_ns=begin,
        duration_ns=end - begin,
        finest_ns=finest,
        lanes=tuple(
            Lane(
                device=track.device, what=track.what, spans_ns=tuple((_joined(spans, finest) - begin).ravel().tolist())
            )
            for track, spans in cut
            if len(spans)
        ),
    )


def _joined(spans: Spans, finest_ns: int) -> Spans:
    """Return the spans, those joined between which there is less than `finest_ns`."""
    is_gap = spans[1:, 0] - spans[:-1, 1] >= max(1, finest_ns)
    first, last = np.concatenate(([True], is_gap)), np.concatenate((is_gap, [True]))
    return np.stack((spans[first, 0], spans[last, 1]), axis=1)
