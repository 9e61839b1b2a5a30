"""The answer of a run made of traces alone: where the time went, and who was late."""

from __future__ import annotations

from collections.abc import Iterator

from dpdoctor import units
from dpdoctor.analysis import Diagnosis
from dpdoctor.analysis.base.traces import CommonSteps
from dpdoctor.analysis.breakdown import Spent, together
from dpdoctor.digest import HOST
from dpdoctor.report.blocks import Headline
from dpdoctor.report.text import capital, listed, mode_label, sentence
from dpdoctor.report.traces import words as trace_words
from dpdoctor.report.traces.traced import TracedMode, traced_modes

# A smaller part of a step is not worth a word in the first sentence.
NOTABLE_RATIO = 0.05
_TONES = {"none": "plain", "unknown": "plain"}


def headline(analysis: Diagnosis) -> Headline:
    """Return the answer in one sentence, and below it what it rests on."""
    for mode in traced_modes(analysis):
        return _verdict(mode)
    return Headline(tone="bad", sentence="No trace could be read.")


def stragglers(analysis: Diagnosis) -> Iterator[str]:
    """Yield in a sentence for each mode whose traces show that somebody is late, who it is."""
    for mode in traced_modes(analysis):
        if len(mode.ranks) > 1 and mode.cross_rank.verdict.kind != "none":
            yield from (sentence(f"In the trace of {mode_label(mode.mode)}, {clause}") for clause in _late(mode))


def who(mode: TracedMode) -> str:
    """Return whose traces these are: `4 ranks`, `rank 3 of 8`."""
    digests = [rank.digest for rank in mode.ranks]
    numbers = {digest.rank for digest in digests}
    if len(digests) == 1 and (digests[0].world_size or 1) > 1 and digests[0].rank is not None:
        return f"rank {digests[0].rank} of {digests[0].world_size}"
    told_apart = None not in numbers and len(numbers) == len(digests)
    return units.count(len(digests), "rank" if told_apart or len(digests) == 1 else "trace")


def _verdict(mode: TracedMode) -> Headline:
    devices = [device for _, device in mode.devices]
    subject = who(mode)[0].upper() + who(mode)[1:]
    if not devices:
        nothing = "the traces hold neither device events nor operators"
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
    parts = [_part(part, found) for part in rest if found.ratio(part) >= NOTABLE_RATIO]
    whole = "the step" if found.num_steps else f"the {trace_words.seconds(found.total_ns)} traced"
    if found.knows_communication:
        return listed([f"{units.share(found.ratio('compute'))} of {whole} computes", *parts])
    computes = f"{units.share(found.ratio('compute'))} of {whole} computes or communicates"
    return f"communication is unknown; {listed([computes, *parts])}"


def _part(part: str, found: Spent) -> str:
    cause = trace_words.largest_cause(found.idle_by) if part == "idle" else None
    mostly = f" (most of it {trace_words.cause_words(cause)})" if cause not in (None, "unknown") else ""
    verb = "are" if part in ("h2d", "copy") else "is"
    return f"{units.share(found.ratio(part))} {verb} {trace_words.PART_WORDS[part]}{mostly}"


def _late(mode: TracedMode) -> Iterator[str]:
    """Yield who keeps the others waiting; where there is no verdict, who came last."""
    if len(mode.ranks) < 2:
        return
    clause, last = trace_words.lateness(mode.cross_rank.verdict), mode.cross_rank.came_last
    if clause is not None:
        yield clause
    elif last is not None:
        yield trace_words.came_last(last)


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
