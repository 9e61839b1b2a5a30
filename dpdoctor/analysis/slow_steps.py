"""Single steps that took far longer than the same rank's steps usually do, and what happened in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpdoctor.analysis.base import stats
from dpdoctor.records import ALL_PHASES, FULL, EventRecord, Rank, StepRecord

# A step that is less longer than usual is not worth a look, however even the others are.
LEAST_RATIO = 1.25
# Among fewer steps none can be called unusual.
LEAST_STEPS = 5
# Events that the script means to have: rules tell what they cost.
KNOWN = frozenset({"evaluation", "checkpoint", "inference"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowStep:
    """One step of one rank that took far longer than usual; times in ns of the host's clock.

    Attributes:
        usual_ns: the median of the rank's other steps.
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
    full = {window.window for window in rank.windows if window.kind == "measure" and window.ablation == FULL}
    steps = [step for step in rank.steps if step.counted and step.window in full and not step.epoch_edge]
    found = _outliers(rank, steps) if len(steps) >= LEAST_STEPS else ()
    return [slow for slow in found if not any(event.kind in KNOWN for event in slow.events)]


def _outliers(rank: Rank, steps: Sequence[StepRecord]) -> Iterator[SlowStep]:
    durations = np.array([step.duration_ns for step in steps], np.int64)
    usual = float(np.median(durations))
    places = np.flatnonzero(durations > stats.outlier_limit(durations, LEAST_RATIO)).tolist()
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
