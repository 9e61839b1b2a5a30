"""All ranks on one axis as a Chrome trace: a list of events that ui.perfetto.dev opens.

A process per rank; in it tracks of steps, of what host and devices did in usual ones, collectives, waits with their
culprit, and a counter of idle time by cause.
Every mode begins at zero, so that modes stand below each other and can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from dpdoctor import units
from dpdoctor.analysis import Diagnosis
from dpdoctor.analysis.base.launches import shown
from dpdoctor.analysis.breakdown import parts
from dpdoctor.analysis.cross_rank import ClockOffset, CommonCalls, CrossRank
from dpdoctor.digest import HOST, Breakdown, Calls, DeviceDigest, Lane
from dpdoctor.report.blocks import Perfetto
from dpdoctor.report.text import mode_label, run_title
from dpdoctor.report.traces.traced import TracedMode, TracedRank, device_words, traced_modes
from dpdoctor.report.traces.words import PART_WORDS, WORK_WORDS, cause_words, is_work, lane_words, seconds

Event: TypeAlias = dict[str, Any]
# More slices than these, of all ranks together, make a file that opens slowly; the longest are kept.
MOST_SLICES = 200_000
US = 1e-3  # microseconds per nanosecond: the unit of the format


class _Axis(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank's times lie on the axis of its mode. `begin_ns` is the axis' zero."""

    base_ns: int
    clock: ClockOffset | None
    begin_ns: int

    def at(self, time_ns: int) -> int:
        """Return a time since the base of the rank's trace as ns since the axis' zero."""
        unix_ns = self.base_ns + time_ns
        return (unix_ns if self.clock is None else self.clock.shift(unix_ns)) - self.begin_ns


class _Slice(msgspec.Struct, frozen=True, kw_only=True):
    """Something that lasts."""

    name: str
    begin_ns: int
    end_ns: int
    args: dict[str, Any]


def timeline(analysis: Diagnosis) -> list[Event]:
    """Return the events, names of processes and tracks first, then by time; times in microseconds from 0.

    Ranks are shifted onto the first one's clock by CrossRank.clocks, whose error stands in the process' name. A rank
    that shares no call with it begins at 0 and says so.
    """
    ranks = list(_ranks(analysis))
    most = MOST_SLICES // max(1, 2 * len(ranks))
    events = [event for number, rank in enumerate(ranks, 1) for event in _rank(number, *rank, most)]
    return sorted(events, key=lambda event: (event["ph"] != "M", event.get("ts", 0.0)))


def _ranks(analysis: Diagnosis) -> Iterator[tuple[TracedMode, TracedRank, _Axis]]:
    for mode in traced_modes(analysis):
        clocks = {clock.rank: clock for clock in mode.cross_rank.clocks if len(mode.cross_rank.clocks) > 1}
        shifted = {rank.name: clocks.get(_rank_number(rank)) for rank in mode.ranks}
        common = [_shifted_first(rank, clock) for rank in mode.ranks if (clock := shifted[rank.name]) is not None]
        for rank in mode.ranks:
            clock = shifted[rank.name]
            begin = _shifted_first(rank, None) if clock is None else min(common)
            yield mode, rank, _Axis(base_ns=rank.digest.base_ns, clock=clock, begin_ns=begin)


def _rank_number(rank: TracedRank) -> int:
    return -1 if rank.digest.rank is None else rank.digest.rank


def _shifted_first(rank: TracedRank, clock: ClockOffset | None) -> int:
    """Return when anything that is drawn of this rank begins, in unix time on the first rank's clock."""
    steps = [device.steps[0].begin_ns if device.steps else device.begin_ns for device in rank.digest.devices]
    usual = [step.begin_ns for step in rank.digest.traced_steps]
    first = min([*steps, *usual, *rank.digest.calls.begin_ns], default=0)
    return _Axis(base_ns=rank.digest.base_ns, clock=clock, begin_ns=0).at(first)


def _rank(process: int, mode: TracedMode, rank: TracedRank, axis: _Axis, most: int) -> Iterator[Event]:
    yield _named("process_name", process, f"{mode_label(mode.mode)}, {rank.name}{_clock_words(mode, axis)}")
    yield {"name": "process_sort_index", "ph": "M", "pid": process, "args": {"sort_index": process}}
    tracks: list[tuple[str, list[_Slice]]] = []
    for device in rank.digest.devices:
        tracks.append((f"steps, {device_words(device)}", list(_steps(device, axis))))
        yield from _idle(process, device, axis)
    tracks += _usual_steps(rank, axis)
    tracks += _lanes("collectives", list(_collectives(rank.digest.calls, axis)), most)
    # Of several traces of one rank the first is compared with those of others.
    is_compared = next(one for one in mode.ranks if one.digest.rank == rank.digest.rank) is rank
    tracks += _lanes("waits", list(_waits(mode.cross_rank, rank, axis)) if is_compared else [], most)
    for track, (name, slices) in enumerate(tracks, 1):
        yield _named("thread_name", process, name, track)
        yield {"name": "thread_sort_index", "ph": "M", "pid": process, "tid": track, "args": {"sort_index": track}}
        yield from (_complete(one, process, track) for one in slices)


def _clock_words(mode: TracedMode, axis: _Axis) -> str:
    if axis.clock is None:
        return " (begins at 0)" if len(mode.ranks) > 1 else ""
    if axis.clock.rank == mode.cross_rank.clocks[0].rank:
        return " (its clock is the axis)"
    return f" (clock to {seconds(axis.clock.error_ns)})"


def _steps(device: DeviceDigest, axis: _Axis) -> Iterator[_Slice]:
    """Yield the whole steps, or all that was traced where there is none."""
    for step in device.steps:
        begin, end = axis.at(step.begin_ns), axis.at(step.end_ns)
        yield _Slice(name=f"step {step.step}", begin_ns=begin, end_ns=end, args=_shares(step.breakdown))
    if not device.steps:
        begin, end = axis.at(device.begin_ns), axis.at(device.begin_ns + device.whole.total_ns)
        yield _Slice(name="whole trace", begin_ns=begin, end_ns=end, args=_shares(device.whole))


def _shares(breakdown: Breakdown) -> dict[str, Any]:
    found = parts(breakdown)
    return {words: seconds(found[part]) if part in found else "unknown" for part, words in PART_WORDS.items()}


def _idle(process: int, device: DeviceDigest, axis: _Axis) -> Iterator[Event]:
    """Yield idle time by cause as a counter that holds for the length of each step, in ms per step."""
    causes = dict.fromkeys(cause for step in device.steps for cause, time_ns in step.idle_by.items() if time_ns)
    if not causes:
        return
    name = f"idle, {device_words(device)} (ms per step)"
    for step in device.steps:
        values = {cause_words(cause): step.idle_by.get(cause, 0) / 1e6 for cause in causes}
        yield _counter(name, process, axis.at(step.begin_ns), values)
    yield _counter(name, process, axis.at(device.steps[-1].end_ns), dict.fromkeys(map(cause_words, causes), 0.0))


def _usual_steps(rank: TracedRank, axis: _Axis) -> list[tuple[str, list[_Slice]]]:
    """Return the lanes of the steps that were kept whole, as tracks."""
    tracks: dict[str, list[_Slice]] = {}
    for step in rank.digest.traced_steps:
        for lane in step.lanes:
            track, name = _track_of(lane)
            for begin, end in zip(lane.spans_ns[::2], lane.spans_ns[1::2], strict=True):
                one = _Slice(
                    name=name, begin_ns=axis.at(step.begin_ns + begin), end_ns=axis.at(step.begin_ns + end), args={}
                )
                tracks.setdefault(track, []).append(one)
    return [(name, sorted(slices, key=lambda one: one.begin_ns)) for name, slices in tracks.items()]


def _track_of(lane: Lane) -> tuple[str, str]:
    """Return the name of the track that a lane is on, and that of its spans; no two of a track overlap."""
    if is_work(lane):
        of = "CPU" if lane.device == HOST else f"GPU {lane.device}"
        return f"{of} {WORK_WORDS[lane.what]}, usual steps", WORK_WORDS[lane.what]
    return "host, usual steps", lane_words(False, lane.what).removeprefix("host: ")


def _collectives(calls: Calls, axis: _Axis) -> Iterator[_Slice]:
    for row, operation in enumerate(calls.operation):
        args: dict[str, Any] = {"exposed": seconds(calls.exposed_ns[row])}
        if calls.num_bytes[row] >= 0:
            args["bytes"] = calls.num_bytes[row]
        if calls.names[calls.group[row]]:
            args["group"] = calls.names[calls.group[row]]
        if calls.seq[row] >= 0:
            args["sequence number"] = calls.seq[row]
        begin, end = axis.at(calls.begin_ns[row]), axis.at(calls.end_ns[row])
        yield _Slice(name=calls.names[operation], begin_ns=begin, end_ns=end, args=args)


def _waits(cross_rank: CrossRank, rank: TracedRank, axis: _Axis) -> Iterator[_Slice]:
    """Yield from the begin of each common call how long this rank waited in it for the last one to come."""
    for group in cross_rank.groups:
        if group.calls is not None and rank.digest.rank in group.ranks:
            yield from _group_waits(group.calls, group.ranks.index(rank.digest.rank), rank, axis)


def _group_waits(common: CommonCalls, column: int, rank: TracedRank, axis: _Axis) -> Iterator[_Slice]:
    calls = rank.digest.calls
    for call, row in enumerate(common.rows[:, column].tolist()):
        wait, last = int(common.wait_ns[call, column]), int(common.last[call])
        if wait <= 0 or not common.judged[call] or last == rank.digest.rank:
            continue
        cause = common.cause[call]
        args = {"call": calls.names[calls.operation[row]], "culprit": f"rank {last}"}
        if cause is not None:
            args["the culprit's time before"] = cause_words(cause)
        begin = calls.begin_ns[row]
        name = f"waits for rank {last}"
        yield _Slice(name=name, begin_ns=axis.at(begin), end_ns=axis.at(begin + wait), args=args)


def _lanes(name: str, slices: Sequence[_Slice], most: int) -> list[tuple[str, list[_Slice]]]:
    """Return as few tracks as keep slices that overlap apart: on one track they would have to lie in each other."""
    if len(slices) > most:
        name = f"{name}, the longest {units.whole(most)} of {units.whole(len(slices))}"
        slices = sorted(slices, key=lambda one: one.begin_ns - one.end_ns)[:most]
    lanes: list[list[_Slice]] = []
    for one in sorted(slices, key=lambda one: one.begin_ns):
        free = next((lane for lane in lanes if lane[-1].end_ns <= one.begin_ns), None)
        if free is None:
            lanes.append(free := [])
        free.append(one)
    return [(name if number == 1 else f"{name} {number}", lane) for number, lane in enumerate(lanes, 1)]


def _complete(one: _Slice, process: int, track: int) -> Event:
    ts, duration = one.begin_ns * US, (one.end_ns - one.begin_ns) * US
    return {"name": one.name, "ph": "X", "pid": process, "tid": track, "ts": ts, "dur": duration, "args": one.args}


def _counter(name: str, process: int, at_ns: int, values: dict[str, float]) -> Event:
    return {"name": name, "ph": "C", "pid": process, "ts": at_ns * US, "args": values}


def _named(what: str, process: int, name: str, track: int = 0) -> Event:
    return {"name": what, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}


TIMELINE = "timeline.json.gz"
# A page carries the timeline of all ranks up to so many calls; a larger one is picked.
MOST_CALLS = 10_000
# More paths than these are not listed; the others are named alike.
MOST_FILES = 8


def perfetto(analysis: Diagnosis) -> Perfetto:
    """Return the traces of a run, that of all ranks carried in the page where it is small."""
    ranks = [rank for mode in traced_modes(analysis) for rank in mode.ranks]
    calls = sum(len(rank.digest.calls.begin_ns) for rank in ranks)
    files = list(_files(analysis))
    return Perfetto(
        title=f"{run_title(analysis)}, {analysis.summary.created}",
        events=tuple(timeline(analysis)) if calls <= MOST_CALLS else (),
        files=(f"all ranks: {TIMELINE}", *files[:MOST_FILES]),
        num_more=max(0, len(files) - MOST_FILES),
    )


def _files(analysis: Diagnosis) -> Iterator[str]:
    """Yield which rank's trace lies where, seen from the report."""
    for mode in traced_modes(analysis):
        for rank in shown(analysis.run.modes[mode.mode]).ranks:
            if rank.trace is not None and rank.trace.is_relative_to(analysis.run.path):
                yield f"{mode_label(mode.mode)}, rank {rank.index}: {rank.trace.relative_to(analysis.run.path)}"
