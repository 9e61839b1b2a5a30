"""What events, such as a garbage collection or a checkpoint, took of the steps that they fell into."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable

from dpdoctor.analysis import stats
from dpdoctor.analysis.figure import Figure
from dpdoctor.analysis.launch_facts import LaunchFacts
from dpdoctor.analysis.windows import NS, Window
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
