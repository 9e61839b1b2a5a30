"""What traces say, in words: the answer, a row per device, what must be known of it; first the names of all parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dpdoctor import units
from dpdoctor.analysis import Diagnosis, RunSummary
from dpdoctor.analysis.base.traces import MAY_HOLD, CommonSteps
from dpdoctor.analysis.breakdown import Spent, spent, together
from dpdoctor.analysis.cross_rank import CameLast, LateStep, Stragglers
from dpdoctor.digest import HOST, OPERATORS, DeviceDigest, Lane
from dpdoctor.report.blocks import Cell, Headline
from dpdoctor.report.text import NOTHING, capital, listed, mode_label, sentence
from dpdoctor.report.traces.traced import MOST_NAMES, TracedMode, device_words, traced_modes
from dpdoctor.report.words.step_parts import phase_words

NS = 1e-9
PART_WORDS = {
    "compute": "compute",
    "exposed_comm": "exposed communication",
    "h2d": "copies to the device",
    "copy": "other copies",
    "idle": "idle",
}
# What computes or moves data, by what it does.
WORK_WORDS = {
    "compute": "compute",
    "comm": "communication",
    "h2d": "copies to the device",
    "copy": "other copies",
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
# A smaller part of a step is not worth a word in the first sentence.
NOTABLE_RATIO = 0.05
_TONES = {"none": "plain", "unknown": "plain"}


def cause_words(cause: str) -> str:
    """Return what a thread or device did, in words; a cause unknown here keeps its name."""
    return _CAUSE_WORDS.get(cause, cause)


def is_work(lane: Lane) -> bool:
    """Return whether a lane is of what computes; else of the training thread, which has a phase h2d, too."""
    return lane.device != HOST or lane.what in {"compute", "comm"}


def lane_words(of_work: bool, what: str) -> str:
    """Return the word for what is done on a lane of work or of the training thread."""
    if of_work:
        return WORK_WORDS[what]
    return "host runs operators" if what == OPERATORS else f"host: {phase_words(what)}"


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


def _event_words(*events: LateStep) -> str:
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
        return _event_words(*verdict.events)
    who = "some rank" if verdict.rank is None else f"rank {verdict.rank}"
    number = units.count(len(verdict.events), "single step")
    return f"{who} is late in {number}, by {seconds(verdict.lateness_ns or 0)}{_because(verdict.cause)}"


def _because(cause: str | None) -> str:
    return "" if cause in (None, "unknown") else f" after {cause_words(cause)}"


def trace_headline(analysis: Diagnosis) -> Headline:
    """Return the answer in one sentence, and below it what it rests on."""
    for mode in traced_modes(analysis):
        return _verdict(mode)
    return Headline(tone="bad", sentence="No trace could be read.")


def stragglers(analysis: Diagnosis) -> Iterator[str]:
    """Yield in a sentence for each mode whose traces show that somebody is late, who it is."""
    for mode in traced_modes(analysis):
        if len(mode.ranks) > 1 and mode.cross_rank.verdict.kind != "none":
            yield from (sentence(f"In the trace of {mode_label(mode.mode)}, {clause}") for clause in _late(mode))


def _whose(mode: TracedMode) -> str:
    """Return whose traces these are: `4 ranks`, `rank 3 of 8`."""
    digests = [rank.digest for rank in mode.ranks]
    numbers = {digest.rank for digest in digests}
    if len(digests) == 1 and (digests[0].world_size or 1) > 1 and digests[0].rank is not None:
        return f"rank {digests[0].rank} of {digests[0].world_size}"
    told_apart = None not in numbers and len(numbers) == len(digests)
    return units.count(len(digests), "rank" if told_apart or len(digests) == 1 else "trace")


def _verdict(mode: TracedMode) -> Headline:
    devices = [device for _, device in mode.devices]
    subject = _whose(mode)[0].upper() + _whose(mode)[1:]
    if not devices:
        why = [rank.digest.untold for rank in mode.ranks if rank.digest.untold]
        nothing = why[0] if why else "the traces hold neither device events nor operators"
        return Headline(tone="bad", sentence=sentence(f"{subject}: {nothing}"))
    common = mode.traces.common
    found = together(mode.traces)
    clauses = [f"{subject}: {_shares(found)}", *_late(mode)]
    kind = mode.cross_rank.verdict.kind if len(mode.ranks) > 1 else "none"
    detail = " ".join(_detail(mode, found, common))
    return Headline(tone=_TONES.get(kind, "warn"), sentence=sentence("; ".join(clauses)), detail=detail)


def _shares(found: Spent) -> str:
    """Return the notable parts of the time, compute first, then the largest."""
    rest = sorted((part for part in found.parts_ns if part != "compute"), key=found.ratio, reverse=True)
    parts = [_part_words(part, found) for part in rest if found.ratio(part) >= NOTABLE_RATIO]
    whole = "the step" if found.num_steps else f"the {seconds(found.total_ns)} traced"
    if found.knows_communication:
        return listed([f"{units.share(found.ratio('compute'))} of {whole} computes", *parts])
    computes = f"{units.share(found.ratio('compute'))} of {whole} computes or communicates"
    return f"communication is unknown; {listed([computes, *parts])}"


def _part_words(part: str, found: Spent) -> str:
    cause = largest_cause(found.idle_by) if part == "idle" else None
    mostly = f" (most of it {cause_words(cause)})" if cause not in (None, "unknown") else ""
    verb = "are" if part in ("h2d", "copy") else "is"
    return f"{units.share(found.ratio(part))} {verb} {PART_WORDS[part]}{mostly}"


def _late(mode: TracedMode) -> Iterator[str]:
    """Yield who keeps the others waiting; where there is no verdict, who came last."""
    if len(mode.ranks) < 2:
        return
    clause, last = lateness(mode.cross_rank.verdict), mode.cross_rank.came_last
    if clause is not None:
        yield clause
    elif last is not None:
        yield came_last(last)


def _detail(mode: TracedMode, found: Spent, common: CommonSteps) -> Iterator[str]:
    """Yield what the shares are taken over, which ranks are missing and why nobody is blamed."""
    number = units.count(len(mode.devices), "device")
    if all(device.index == HOST for _, device in mode.devices):
        number = units.count(len(mode.devices), "training thread")
    if found.num_steps:
        yield f"Shares of {units.count(found.num_steps, 'whole step')} on {number}, added up."
        if common.left_out:
            yield sentence(capital(common.left_out))
    else:
        nothing = capital(common.left_out)
        yield f"{nothing}: shares are of all that was traced on {number}."
    yield from _untold(mode)
    reason = mode.traces.why_unknown
    if reason is not None:
        yield sentence(f"Why communication is unknown: {reason}")
    yield "A profiler slows what it watches, the host most."
    if mode.cross_rank.missing:
        world = len(mode.cross_rank.ranks) + len(mode.cross_rank.missing)
        yield f"{units.whole(len(mode.cross_rank.missing))} of {units.count(world, 'rank')} have no trace here."
    if len(mode.ranks) > 1 and mode.cross_rank.verdict.reason and reason is None:
        what = "Who is late" if mode.cross_rank.came_last is None else "Whether it is so in most steps"
        yield sentence(f"{what} cannot be told: {mode.cross_rank.verdict.reason}")


def _untold(mode: TracedMode) -> Iterator[str]:
    """Yield which traces tell nothing of where the time went, and why it is so of the first of them."""
    found = [(rank.name, rank.digest.untold) for rank in mode.ranks if rank.digest.untold]
    if found:
        others = f" and {units.count(len(found) - 1, 'other trace')}" if len(found) > 1 else ""
        yield sentence(f"Not in these figures: {found[0][0]}{others}, as {found[0][1]}")


_SHORT = {"exposed_comm": "exposed comm"}
# The parts of the time by their short names, so that a row fits into eighty columns.
HEADS = ("rank", "device", *(_SHORT.get(part, part) for part in PART_WORDS), "total", "overlap")
# The first of these columns that holds figures.
FIRST_FIGURE = HEADS.index("device") + 1
# So many are shown where there is little room; the page has all.
MOST_ROWS = 40


def device_rows(mode: TracedMode) -> list[tuple[str, ...]]:
    """Return a row under HEADS for each of the first devices: the parts' shares, the time per step and the overlap.

    Shares are of the steps that are whole on every device or, where there is none, of the whole trace.
    """
    common = mode.traces.common
    return [(name, device_words(device), *_figures(device, common)) for name, device in _devices(mode)[:MOST_ROWS]]


def devices_left_out(mode: TracedMode) -> str:
    """Return in a sentence how many devices have no row; empty: all have one."""
    more = len(_devices(mode)) - MOST_ROWS
    return f"{units.whole(more)} more are in the report." if more > 0 else ""


def _devices(mode: TracedMode) -> list[tuple[str, DeviceDigest]]:
    return [(rank.name, device) for rank in mode.ranks for device in rank.digest.devices if device.whole.total_ns]


def _figures(device: DeviceDigest, common: CommonSteps) -> Iterator[str]:
    found = spent([device], common)
    yield from (units.share(found.ratio(part)) if part in found.parts_ns else "unknown" for part in PART_WORDS)
    yield f"{seconds(found.total_ns / found.num_steps)}/step" if found.num_steps else seconds(found.total_ns)
    nothing = NOTHING if found.knows_communication else "unknown"
    yield nothing if found.overlap_ratio is None else units.share(found.overlap_ratio)


def read_in_part(mode: TracedMode) -> Iterator[str]:
    """Yield for each trace that is not whole, where it stops being readable and why."""
    for rank in mode.ranks:
        if rank.digest.damage:
            yield f"{rank.name} was read in part: {sentence(rank.digest.damage)}"


def reading_notes(mode: TracedMode) -> Iterator[str]:
    """Yield what was noticed while reading, and what the figures of devices may hold."""
    unknown = [rank for rank in mode.ranks if rank.digest.unknown_communication]
    if unknown:
        which = "" if len(unknown) == len(mode.ranks) else f" of {listed([rank.name for rank in unknown[:MOST_NAMES]])}"
        more = f" and {units.whole(len(unknown) - MOST_NAMES)} more" if len(unknown) > MOST_NAMES else ""
        yield sentence(f"The compute{which}{more} {MAY_HOLD}, which is unknown")
    yield from (f"{rank.name}: {sentence(note)}" for rank in mode.ranks for note in rank.digest.notes)


def late_steps(mode: TracedMode) -> Iterator[str]:
    """Yield single late steps beside a pattern, and what was not compared between ranks."""
    if mode.cross_rank.verdict.kind != "single":
        yield from (sentence(f"Besides, {_event_words(event)}") for event in mode.cross_rank.verdict.events)
    yield from map(sentence, mode.cross_rank.notes)


def unreadable(summary: RunSummary) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield in a clause how many traces could not be read, and why, a line each."""
    for mode in summary.modes.values():
        if mode.stderr_tail:
            yield f"{units.count(len(mode.stderr_tail), 'trace')} could not be read", mode.stderr_tail
