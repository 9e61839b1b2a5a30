"""The traces behind a report: by mode, the digest of each rank with the name that it goes by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from dpdoctor.analysis import TRACE_MODE, Diagnosis, ModeSummary
from dpdoctor.analysis.base.launches import shown
from dpdoctor.analysis.base.traces import Traces
from dpdoctor.analysis.cross_rank import CrossRank
from dpdoctor.digest import HOST, DeviceDigest, Digest
from dpdoctor.report.blocks import Absent, Block, Callout, OfMode
from dpdoctor.report.text import absent_of, clipped, sentence
from dpdoctor.report.words import standing

# Of a file that stands for a rank; the whole name is in the table of traces.
LONGEST_NAME = 32
# More ranks are counted.
MOST_NAMES = 8


class TracedRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's digest; `name` is its number or, where the trace does not say it, its file. No two are alike."""

    name: str
    digest: Digest


class TracedMode(msgspec.Struct, frozen=True, kw_only=True):
    """The traces of the launch that speaks for a mode; at least one."""

    mode: str
    summary: ModeSummary
    ranks: tuple[TracedRank, ...]
    traces: Traces
    cross_rank: CrossRank

    @property
    def devices(self) -> list[tuple[str, DeviceDigest]]:
        """Return every device on which anything took time, with the name that tells it from the others."""
        return [
            (_device_name(rank, device), device)
            for rank in self.ranks
            for device in rank.digest.devices
            if device.whole.total_ns
        ]


def is_trace_run(analysis: Diagnosis) -> bool:
    """Return whether the run was made of traces that existed before: nothing but them was measured."""
    return [*analysis.summary.modes] == [TRACE_MODE]


def has_traces(analysis: Diagnosis) -> bool:
    """Return whether any mode has traces to show."""
    return bool(traced_modes(analysis))


def is_profile(analysis: Diagnosis) -> bool:
    """Return whether a script was run, and windows and samplers may have something to show."""
    return not is_trace_run(analysis)


def traced_modes(analysis: Diagnosis) -> list[TracedMode]:
    """Return the modes that left traces and whose figures may be shown, in the order of the run."""
    modes = standing.shown_modes(analysis.summary)
    found = {mode: shown(analysis.run.modes[mode]).traces for mode in modes if analysis.run.modes[mode]}
    return [
        TracedMode(
            mode=mode, summary=modes[mode], ranks=_named(traces), traces=traces, cross_rank=analysis.cross_rank[mode]
        )
        for mode, traces in found.items()
        if traces
    ]


def focused(analysis: Diagnosis) -> list[TracedMode]:
    """Return the traced modes, the one that the headline is about first."""
    focus = standing.focus(analysis.summary)
    return sorted(traced_modes(analysis), key=lambda mode: mode.mode != focus)


def by_mode(analysis: Diagnosis, what: str, build: Callable[[TracedMode], Sequence[Block] | str]) -> list[Block]:
    """Return the blocks of each mode, and the modes that have nothing to show with their reasons.

    `build` returns a mode's blocks, or in words why it has none. Of traces alone there is one mode, and no
    choice; `what` is then what is not shown.
    """
    built = {found.mode: build(found) for found in traced_modes(analysis)}
    reasons = {mode: blocks for mode, blocks in built.items() if isinstance(blocks, str)}
    if is_trace_run(analysis):
        return [block for blocks in built.values() for block in _or_absent(what, blocks)] or [
            Absent(what=what, reason="no trace could be read")
        ]
    modes: list[Block] = [
        OfMode(mode=mode, blocks=tuple(blocks)) for mode, blocks in built.items() if not isinstance(blocks, str)
    ]
    missing = {mode: _why_no_trace(analysis, mode) for mode in analysis.summary.modes if mode not in built}
    others = absent_of(what, {**reasons, **missing})
    return [*modes, *others] or [Absent(what=what, reason="this run has no modes")]


def damage(mode: TracedMode) -> list[Callout]:
    """Return a callout for each trace that could be read in part only."""
    return [
        Callout(tone="warn", title=f"{rank.name}: the trace was read in part", text=sentence(rank.digest.damage))
        for rank in mode.ranks
        if rank.digest.damage
    ]


def not_measured(mode: TracedMode, kinds: Callable[[str], bool]) -> list[Absent]:
    """Return what the traces cannot tell, of the chosen kinds: each once, with the ranks where it is not all."""
    found: dict[tuple[str, str], list[str]] = {}
    for rank in mode.ranks:
        for item in rank.digest.not_measured:
            if kinds(item.what):
                found.setdefault((item.what, item.reason), []).append(rank.name)
    return [
        Absent(what=what[0].upper() + what[1:], reason=reason + _of(names, len(mode.ranks)))
        for (what, reason), names in found.items()
    ]


def device_words(device: DeviceDigest) -> str:
    """Return which device of its process it is."""
    return "CPU" if device.index == HOST else f"GPU {device.index}"


def _of(names: Sequence[str], num_ranks: int) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return "" if len(names) == num_ranks else f" ({', '.join(names[:MOST_NAMES])}{more})"


def _or_absent(what: str, blocks: Sequence[Block] | str) -> Sequence[Block]:
    return [Absent(what=what, reason=blocks)] if isinstance(blocks, str) else blocks


def _why_no_trace(analysis: Diagnosis, mode: str) -> str:
    summary, recording = analysis.summary.modes[mode], analysis.run.header.spec.recording
    if recording.explain or not recording.trace_steps:
        return "no trace was asked for"
    return standing.withheld_briefly(summary) or summary.trace_reason or summary.reason or "no trace was recorded"


def _named(traces: Traces) -> tuple[TracedRank, ...]:
    digests = traces.digests
    names = [clipped(d.source, LONGEST_NAME) if d.rank is None else f"rank {d.rank}" for d in digests]
    times = Counter(names)
    return tuple(
        TracedRank(name=name if times[name] == 1 else f"{name}, trace {place}", digest=digest)
        for place, (name, digest) in enumerate(zip(names, digests, strict=True), 1)
    )


def _device_name(rank: TracedRank, device: DeviceDigest) -> str:
    return rank.name if len(rank.digest.devices) == 1 else f"{rank.name}, {device_words(device)}"
