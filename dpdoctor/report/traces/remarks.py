"""What must be known of traces besides their figures, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from dpdoctor import units
from dpdoctor.analysis import RunSummary
from dpdoctor.analysis.traces import MAY_HOLD
from dpdoctor.report.text import listed, sentence
from dpdoctor.report.traces.traced import MOST_NAMES, TracedMode
from dpdoctor.report.traces.words import event_words


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
