"""What happens now and then, an evaluation, a checkpoint or a garbage collection, and what it takes of the time."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpdoctor import units
from dpdoctor.analysis.base import stats
from dpdoctor.analysis.base.figure import Figure
from dpdoctor.analysis.base.launch_facts import LaunchFacts
from dpdoctor.analysis.base.weighing import share_beside
from dpdoctor.analysis.base.windows import NS, Window
from dpdoctor.records import Launch, Rank


def events_by_step(rank: Rank, kind: str, detail: str | None = None) -> dict[int, int]:
    """Return the ns that events of one kind, or with one detail, took in each step of a rank, by the step's number."""
    begins = [step.begin_ns for step in rank.steps]
    found: dict[int, int] = defaultdict(int)
    for event in rank.events:
        if event.kind != kind or detail not in {None, event.detail}:
            continue
        index = bisect_right(begins, event.at_ns) - 1
        if index >= 0 and event.at_ns < begins[index] + rank.steps[index].duration_ns:
            found[rank.steps[index].step] += event.duration_ns
    return dict(found)


def slowest_by_step(launch: Launch, kind: str) -> dict[int, float]:
    """Return the seconds that events of one kind took in each step, on the rank that they held up most."""
    found: dict[int, float] = defaultdict(float)
    for rank in launch.ranks:
        for step, duration_ns in events_by_step(rank, kind).items():
            found[step] = max(found[step], duration_ns * NS)
    return dict(found)


def share_of_events(windows: Iterable[tuple[LaunchFacts, Window]], kind: str) -> Figure:
    """Return the share of the steady steps' time that events of one kind took; the interval is over windows.

    Ranks wait for each other in every step: what holds up one of them holds up all.
    """
    parts = []
    for launch, window in windows:
        taken = slowest_by_step(launch, kind)
        steps = [step.step for step in window.ranks[0].steady]
        seconds, _ = window.step()
        parts.append((sum(taken.get(step, 0.0) for step in steps), seconds))
    return stats.ratio_of_totals(parts, "ratio", reason="no measured window was complete on every rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """All that was seen of one kind, such as evaluations.

    Attributes:
        seconds: that one takes, on the slowest rank.
        every: steps from one to the next.
        per_epoch: steps of an epoch; None: that is not known.
        share: of the time of these steps and one interruption together.
    """

    count: int
    seconds: Figure
    every: float
    share: Figure
    per_epoch: int | None = None

    @property
    def rhythm(self) -> str:
        """How often one comes, in words."""
        steps = f"every {units.count(round(self.every), 'step')}"
        is_epochs = self.per_epoch is not None and round(self.every) == self.per_epoch
        return f"once per epoch, {steps}" if is_epochs else steps

    @property
    def evidence(self) -> tuple[str, ...]:
        """How long one takes, and how often it comes."""
        assert self.seconds.value is not None
        each = f"One takes {units.seconds(self.seconds.value)}; {units.count(self.count, 'time')} seen."
        return each, f"One comes {self.rhythm}."


def interruptions(
    launch: Launch, windows: Iterable[tuple[LaunchFacts, Window]], kind: str
) -> Interruptions | str | None:
    """Return what was seen of one kind of event in a launch, and its share of the time by the mode's measured windows.

    None: nothing, though a whole epoch was seen, or has no known length; str: why it cannot be told.
    """
    seen = slowest_by_step(launch, kind)
    per_epoch = next((r.record.steps_per_epoch for r in launch.ranks if r.record), None)
    if not seen:
        return _none_seen(kind, _steps_recorded(launch), per_epoch)
    every = _every(launch, sorted(seen)) if len(seen) > 1 else per_epoch
    if every is None:
        return f"one {kind} was seen, and the length of an epoch is not known, nor how often it comes"
    if len(seen) == 1 and (without := _longest_without(launch, *seen)) > every + 1:
        return f"one {kind} was seen, with {units.count(without, 'step')} without: it does not come in each epoch"
    compiled = slowest_by_step(launch, "compile")
    usual = [taken for step, taken in seen.items() if step not in compiled]
    if not usual:
        return f"something was compiled in each {kind} that was seen, which the next ones are spared"
    seconds = stats.mean_interval(usual, "s")
    plain_s = _plain_step(windows, kind)
    if plain_s is None:
        return f"no step without {kind} was measured to compare with"
    return Interruptions(
        count=len(seen), seconds=seconds, every=every, share=share_beside(seconds, every * plain_s), per_epoch=per_epoch
    )


def _every(launch: Launch, seen: list[int]) -> float:
    """Return the median of the steps from one to the next, in which as many samples are trained on as between them.

    Until a new optimizer is known to have taken the place of another, its steps are counted as one.
    """
    between = np.diff(seen).astype(float)
    samples = {step.step: step.samples_drawn or step.samples_entered for step in launch.ranks[0].steps}
    usual = float(np.median(list(samples.values())))
    if usual > 0:
        trained = [sum(samples.get(step, 0) for step in range(*part)) for part in pairwise(seen)]
        between = np.maximum(between, np.round(np.array(trained) / usual))
    return float(np.median(between))


def _longest_without(launch: Launch, seen: int) -> int:
    """Return the steps before or after the one that was seen, whichever are more."""
    numbers = [step.step for rank in launch.ranks for step in rank.steps]
    return max(seen - min(numbers), max(numbers) - seen)


def _none_seen(kind: str, recorded: int, per_epoch: int | None) -> str | None:
    if per_epoch is None or recorded >= per_epoch:
        return None
    steps = f"{units.whole(recorded)} of {units.count(per_epoch, 'step')}"
    return f"no {kind} was seen, but the recording ended after {steps} of an epoch"


def _steps_recorded(launch: Launch) -> int:
    return max((len(rank.steps) for rank in launch.ranks), default=0)


def _plain_step(windows: Iterable[tuple[LaunchFacts, Window]], kind: str) -> float | None:
    """Return the mean seconds of a steady step in which nothing of this kind happened.

    On a GPU of whole windows, as the host's time of a single step is not the device's.
    """
    seconds, steps = 0.0, 0
    for launch, window in windows:
        seen = slowest_by_step(launch, kind)
        for rank in window.ranks:
            plain = [step.duration_ns for step in rank.steady if step.step not in seen]
            if not launch.on_gpu:
                seconds, steps = seconds + sum(plain) * NS, steps + len(plain)
            elif len(plain) == len(rank.steady):
                seconds, steps = seconds + rank.steady_s, steps + len(plain)
    return seconds / steps if steps else None
