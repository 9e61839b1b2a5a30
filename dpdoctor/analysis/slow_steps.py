"""Single steps that took far longer than the same rank's steps usually do, and what happened in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec
import numpy as np

from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.launches import MEASURE
from dpdoctor.records import ALL_PHASES, FULL, EventRecord, Rank, StepRecord, WindowRecord

# A step that is less longer than usual is not worth a look, however even the others are.
LEAST_RATIO = 1.25
# Among fewer steps none can be called unusual.
LEAST_STEPS = 5
# Events that the script means to have: rules tell what they cost.
KNOWN = frozenset({"evaluation", "checkpoint", "inference"})


class SlowStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one rank that took far longer than usual; times in ns of the host's clock.

    On a GPU, whose host runs ahead or waits for work of many steps, one in which the host came too late for the device.

    Attributes:
        usual_ns: the median of the rank's other steps; on a GPU as the device takes them.
        phase: of PHASES, the one that took most more than its own median; `longer_ns` is by how much.
        events: that lay in the step, wholly or in part.
    """

    rank: int
    step: StepRecord
    usual_ns: int
    phase: str
    longer_ns: int
    events: tuple[EventRecord, ...]


def slow_steps(rank: Rank) -> list[SlowStep]:
    """Return the outliers among the rank's counted steps of windows in which nothing is switched off, in their order.

    Left out are those of which everybody knows why: an epoch began, or one of KNOWN lies in them.
    """
    full = {window.window: window for window in rank.windows if window.kind == MEASURE and window.ablation == FULL}
    counted = [step for step in rank.steps if step.counted and step.window in full]
    taken_ns = [
        taken_ns
        for number, steps in groupby(counted, key=lambda step: step.window)
        for taken_ns in _taken(rank, full[number], list(steps))
    ]
    usual = [(step, ns) for step, ns in zip(counted, taken_ns, strict=True) if not step.epoch_edge]
    found = _outliers(rank, usual) if len(usual) >= LEAST_STEPS else ()
    return [slow for slow in found if not any(event.kind in KNOWN for event in slow.events)]


def _taken(rank: Rank, window: WindowRecord, steps: Sequence[StepRecord]) -> Iterator[float]:
    """Yield the ns that each counted step of a window took: on a GPU, the device.

    Were all steps alike, the device would be done with each a `_pace` after the one before: only where the host came
    later than that did it hold the device up. Whether the host of a window's last steps held it up, or waited for it,
    nobody can tell.
    """
    if rank.record is None or rank.record.device_type != "cuda":
        yield from (step.duration_ns for step in steps)
        return
    ends_ns = [step.begin_ns + step.duration_ns for step in steps]
    pace_ns, done_ns = _pace(window, ends_ns), float(window.begin_ns)
    for end_ns in ends_ns:
        began_ns, done_ns = done_ns, max(done_ns + pace_ns, float(end_ns))
        yield done_ns - began_ns


def _pace(window: WindowRecord, ends_ns: Sequence[int]) -> float:
    """Return the ns that a device takes for a step whose host, which is done with each at these times, is no hindrance.

    The mean of the window or, where the host came far too late with a step, of what is left of it after the last such.
    """
    pace_ns, done_ns = (window.end_ns - window.begin_ns) / len(ends_ns), float(window.begin_ns)
    for left, end_ns in zip(range(len(ends_ns) - 1, 0, -1), ends_ns, strict=False):
        if end_ns - done_ns > LEAST_RATIO * pace_ns:
            pace_ns = (window.end_ns - end_ns) / left
        done_ns = max(done_ns + pace_ns, float(end_ns))
    return pace_ns


def _outliers(rank: Rank, taken: Sequence[tuple[StepRecord, float]]) -> Iterator[SlowStep]:
    steps, durations = [step for step, _ in taken], np.array([ns for _, ns in taken])
    usual = float(np.median(durations))
    limit = stats.outlier_limit(durations, LEAST_RATIO)
    # A device's steps are given a pace of their window: what made that one slow is where the host was slow, too.
    slow = np.minimum(durations, [step.duration_ns for step in steps]) > limit
    places = np.flatnonzero(slow).tolist()
    if not places:
        return
    phases = np.array([step.phases_ns for step in steps], np.int64)
    longer = phases - np.median(phases, axis=0)
    for place in places:
        phase = int(longer[place].argmax())
        yield SlowStep(
            rank=rank.index,
            step=steps[place],
            usual_ns=round(usual),
            phase=ALL_PHASES[phase],
            longer_ns=round(float(longer[place, phase])),
            events=tuple(_meanwhile(rank, steps[place])),
        )


def _meanwhile(rank: Rank, step: StepRecord) -> Iterator[EventRecord]:
    end_ns = step.begin_ns + step.duration_ns
    for event in rank.events:
        if event.at_ns < end_ns and max(event.at_ns + event.duration_ns, event.at_ns + 1) > step.begin_ns:
            yield event
