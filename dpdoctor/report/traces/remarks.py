"""What is told of traces in text: where the time of each device went, and what must be known besides."""

from __future__ import annotations

from collections.abc import Iterator

from dpdoctor import units
from dpdoctor.analysis import RunSummary
from dpdoctor.analysis.base.traces import MAY_HOLD, CommonSteps
from dpdoctor.analysis.breakdown import spent
from dpdoctor.digest import DeviceDigest
from dpdoctor.report.text import NOTHING, listed, sentence
from dpdoctor.report.traces.traced import MOST_NAMES, TracedMode, device_words
from dpdoctor.report.traces.words import PART_WORDS, event_words, seconds

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


def left_to_the_report(mode: TracedMode) -> str:
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


def damage(mode: TracedMode) -> Iterator[str]:
    """Yield for each trace that is not whole, where it stops being readable and why."""
    for rank in mode.ranks:
        if rank.digest.damage:
            yield f"{rank.name} was read in part: {sentence(rank.digest.damage)}"


def notes(mode: TracedMode) -> Iterator[str]:
    """Yield what was noticed while reading, and what the figures of devices may hold."""
    unknown = [rank for rank in mode.ranks if rank.digest.unknown_communication]
    if unknown:
        which = "" if len(unknown) == len(mode.ranks) else f" of {listed([rank.name for rank in unknown[:MOST_NAMES]])}"
        more = f" and {units.whole(len(unknown) - MOST_NAMES)} more" if len(unknown) > MOST_NAMES else ""
        yield sentence(f"The compute{which}{more} {MAY_HOLD}, which is unknown")
    yield from (f"{rank.name}: {sentence(note)}" for rank in mode.ranks for note in rank.digest.notes)


def comparison(mode: TracedMode) -> Iterator[str]:
    """Yield single late steps beside a pattern, and what was not compared between ranks."""
    if mode.cross_rank.verdict.kind != "single":
        yield from (sentence(f"Besides, {event_words(event)}") for event in mode.cross_rank.verdict.events)
    yield from map(sentence, mode.cross_rank.notes)


def unreadable(summary: RunSummary) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield in a clause how many traces could not be read, and why, a line each."""
    for mode in summary.modes.values():
        if mode.stderr_tail:
            yield f"{units.count(len(mode.stderr_tail), 'trace')} could not be read", mode.stderr_tail
