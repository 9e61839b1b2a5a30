"""The parts of traced time, and who keeps whom waiting, in words."""

from __future__ import annotations

from collections.abc import Mapping

from dpdoctor import units
from dpdoctor.analysis.cross_rank import CameLast, LateStep, Stragglers
from dpdoctor.report.blocks import Cell
from dpdoctor.report.text import listed

NS = 1e-9
PART_WORDS = {
    "compute": "compute",
    "exposed_comm": "exposed communication",
    "h2d": "copies to the device",
    "copy": "other copies",
    "idle": "idle",
}
_CAUSE_WORDS = {
    "compute": "computing",
    "copy": "copying",
    "data": "waiting for data",
    "sync": "waiting for the device",
    "allocator": "allocating memory",
    "gc": "collecting garbage",
    "comm_wait": "waiting for a collective",
    "annotation": "user annotation",
    "optimizer": "optimizer launch",
    "dispatch": "launching operators",
    "script": "code of the training loop",
    "python": "Python between operators",
    "launch_latency": "launch latency",
    "dependency": "dependency stall",
    "unknown": "unknown",
}
# In more of the steps than this somebody who is late is late in nearly every one.
NEARLY_EVERY = 0.9
# More single events than these are not told one by one.
MOST_EVENTS = 3


def cause_words(cause: str) -> str:
    """Return what a thread or device did, in words; a cause unknown here keeps its name."""
    return _CAUSE_WORDS.get(cause, cause)


def seconds(duration_ns: float) -> str:
    """Return nanoseconds as text."""
    return units.seconds(duration_ns * NS)


def time_cell(duration_ns: float, *, note: str = "") -> Cell:
    """Return the cell of a time in nanoseconds; a negative one has its sign."""
    text = seconds(duration_ns) if duration_ns >= 0 else f"-{seconds(-duration_ns)}"
    return Cell(text=text, note=note, sort=duration_ns * NS)


def largest_cause(idle_by: Mapping[str, int]) -> str | None:
    """Return the cause that more than half of the idle time has; None where none has."""
    cause, most = max(idle_by.items(), key=lambda item: item[1], default=("", 0))
    return cause if most > sum(idle_by.values()) / 2 else None


def lateness(verdict: Stragglers) -> str | None:
    """Return in a clause who keeps the others waiting; None where that is unknown."""
    if verdict.kind == "unknown":
        return None
    if verdict.kind == "none":
        return "in the trace no rank keeps another waiting"
    if verdict.kind == "single":
        return _single(verdict)
    by, why = seconds(verdict.lateness_ns or 0), _because(verdict.cause)
    if verdict.kind == "rotating":
        return f"in most steps a rank is late by {by}, now one and now another{why}"
    who = "a rank, not always the same," if verdict.rank is None else f"rank {verdict.rank}"
    if verdict.kind == "periodic":
        return f"{who} is late by {by} every {units.count(verdict.period or 0, 'step')}{why}"
    often = "nearly every step" if verdict.times >= NEARLY_EVERY * verdict.num_steps else "most steps"
    return f"{who} is late by {by} in {often}{why}"


def came_last(found: CameLast) -> str:
    """Return in a clause who came last to most collectives, and how long they waited for it."""
    often = f"{units.whole(found.times)} of {units.count(found.of, 'collective')}"
    return f"rank {found.rank} came last to {often}, which waited {seconds(found.waited_ns)} for it"


def event_words(*events: LateStep) -> str:
    """Return late steps in a clause; a rank that is late twice in turn is named once."""
    told: list[str] = []
    for number, event in enumerate(events):
        is_named = number and event.rank == events[number - 1].rank
        who = "" if is_named else f"rank {event.rank} " if number else f"rank {event.rank} is late "
        why = f" ({_because(event.cause).strip()})" if _because(event.cause) else ""
        told.append(f"{who}by {seconds(event.lateness_ns)} in step {event.step}{why}")
    return listed(told)


def _single(verdict: Stragglers) -> str:
    if len(verdict.events) <= MOST_EVENTS:
        return event_words(*verdict.events)
    who = "some rank" if verdict.rank is None else f"rank {verdict.rank}"
    number = units.count(len(verdict.events), "single step")
    return f"{who} is late in {number}, by {seconds(verdict.lateness_ns or 0)}{_because(verdict.cause)}"


def _because(cause: str | None) -> str:
    return "" if cause in (None, "unknown") else f" after {cause_words(cause)}"
