"""One traced step of each rank, what host and devices did in it, and the way to the whole trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dpdoctor import units
from dpdoctor.analysis import Diagnosis
from dpdoctor.analysis.cross_rank import ClockOffset
from dpdoctor.digest import HOST, HOST_PHASES, OPERATORS, Lane, TracedStep
from dpdoctor.report.blocks import Block, Chart, View
from dpdoctor.report.drawing import charts
from dpdoctor.report.traces.timeline import perfetto
from dpdoctor.report.traces.traced import TracedMode, TracedRank, by_mode, has_traces
from dpdoctor.report.traces.words import WORK_WORDS, is_work, lane_words

NS = 1e-9
# More ranks below each other are not read; those with the longest step are drawn.
MOST_RANKS = 8
# Clocks that are known less well than this part of the step do not say who was first.
MOST_CLOCK_ERROR = 0.02
NO_STEP = "no trace holds a whole step"
# By what is done: its colour, and the row that it is on.
_WORKS = {
    "compute": (charts.BLUE, "compute"),
    "comm": (charts.PURPLE, "communication"),
    "h2d": (charts.ORANGE, "copies"),
    "copy": (charts.GREY, "copies"),
}
_PHASE_COLORS = dict(
    zip(
        HOST_PHASES,
        (charts.VERMILION, charts.ORANGE, charts.SKY, "#7B9FD1", charts.GREEN, charts.GREY),
        strict=True,
    )
)
ROW = 19  # pixels


class _Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's step; `offset_ns`: where its begin lies on the axis."""

    rank: TracedRank
    step: TracedStep
    offset_ns: int


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the picture: the lanes on it, each with the time at which its step begins."""

    name: str
    lanes: tuple[Lane, ...]
    offset_ns: int


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return a timeline per mode, and the way to the traces."""
    return [*by_mode(analysis, "Timeline", _step_timeline), perfetto(analysis)]


def _step_timeline(mode: TracedMode) -> Sequence[Block] | str:
    """Return the timeline of a mode's ranks, or why there is none."""
    chosen = {rank.name: step for rank in mode.ranks if (step := _usual(mode, rank)) is not None}
    if not chosen:
        return NO_STEP
    longest = sorted(chosen, key=lambda name: -chosen[name].duration_ns)[:MOST_RANKS]
    ranks = [rank for rank in mode.ranks if rank.name in longest]
    one_clock = _on_one_clock(mode, ranks, chosen)
    drawn = list(_drawn(mode, ranks, chosen, one_clock=one_clock))
    return [_chart(mode, drawn, num_ranks=len(chosen), one_clock=one_clock)]


def _usual(mode: TracedMode, rank: TracedRank) -> TracedStep | None:
    """Return a rank's step to draw: of the number that most ranks kept, else the middle one of its own."""
    kept = {step.step: step for step in rank.digest.traced_steps}
    counts = Counter(step.step for each in mode.ranks for step in each.digest.traced_steps)
    most = max(counts.values(), default=0)
    common = sorted(number for number, count in counts.items() if count == most)
    number = common[len(common) // 2] if common else None
    own = sorted(kept.values(), key=lambda step: step.duration_ns)
    return kept.get(number, own[len(own) // 2]) if own and number is not None else None


def _on_one_clock(mode: TracedMode, ranks: Sequence[TracedRank], chosen: dict[str, TracedStep]) -> bool:
    """Return whether the ranks' clocks are known well enough, and all draw the same step."""
    clocks = [_clock(mode, rank) for rank in ranks]
    same = len({chosen[rank.name].step for rank in ranks}) == 1
    shortest = min(chosen[rank.name].duration_ns for rank in ranks)
    return same and all(clock is not None and clock.error_ns <= MOST_CLOCK_ERROR * shortest for clock in clocks)


def _clock(mode: TracedMode, rank: TracedRank) -> ClockOffset | None:
    return next((clock for clock in mode.cross_rank.clocks if clock.rank == rank.digest.rank), None)


def _drawn(
    mode: TracedMode, ranks: Sequence[TracedRank], chosen: dict[str, TracedStep], *, one_clock: bool
) -> Iterator[_Drawn]:
    begins = {}
    for rank in ranks:
        unix_ns, clock = rank.digest.base_ns + chosen[rank.name].begin_ns, _clock(mode, rank)
        begins[rank.name] = clock.shift(unix_ns) if one_clock and clock is not None else 0
    first = min(begins.values())
    for rank in ranks:
        yield _Drawn(rank=rank, step=chosen[rank.name], offset_ns=begins[rank.name] - first)


def _chart(mode: TracedMode, drawn: Sequence[_Drawn], *, num_ranks: int, one_clock: bool) -> Chart:
    rows = [row for one in drawn for row in _rows(one)]
    scale, unit = units.time_scale(max(one.offset_ns + one.step.duration_ns for one in drawn) * NS)
    keys = dict.fromkeys((is_work(lane), lane.what) for row in rows for lane in row.lanes)
    order = [*((False, what) for what in (*HOST_PHASES, OPERATORS)), *((True, what) for what in _WORKS)]
    return Chart(
        title=_title(drawn),
        traces=tuple(_bars(key, rows, scale) for key in order if key in keys),
        layout=_layout(f"{unit} since {_zero(drawn, one_clock=one_clock)}", rows, len(drawn)),
        height=charts.height(ROW * len(rows) + 8 * len(drawn), num_names=len(keys)),
        how_to_read=_how_to_read(mode, drawn, num_ranks, one_clock=one_clock),
        alternative=" ".join(map(_words, drawn)),
    )


def _rows(one: _Drawn) -> Iterator[_Row]:
    """Yield the rows of a rank, the host's first."""
    hosts = [lane for lane in one.step.lanes if not is_work(lane)]
    if hosts:
        yield _Row(name=f"{one.rank.name}  host", lanes=tuple(hosts), offset_ns=one.offset_ns)
    devices = list(dict.fromkeys(lane.device for lane in one.step.lanes if is_work(lane)))
    for device in devices:
        of = "CPU" if device == HOST else f"GPU {device}" if len(devices) > 1 else "GPU"
        for row in dict.fromkeys(row for _, row in _WORKS.values()):
            lanes = [ln for ln in one.step.lanes if ln.device == device and is_work(ln) and _WORKS[ln.what][1] == row]
            if lanes:
                yield _Row(name=f"{of} {row}", lanes=tuple(lanes), offset_ns=one.offset_ns)


def _bars(key: tuple[bool, str], rows: Sequence[_Row], scale: float) -> dict[str, Any]:
    """Return all spans of one kind, as bars that begin where they begin."""
    spans = [
        (number, row.offset_ns + begin, end - begin)
        for number, row in enumerate(rows)
        for lane in row.lanes
        if (is_work(lane), lane.what) == key
        for begin, end in zip(lane.spans_ns[::2], lane.spans_ns[1::2], strict=True)
    ]
    name, color = lane_words(*key), _color(*key)
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [number for number, _, _ in spans],
        "base": [round(begin * NS / scale, 5) for _, begin, _ in spans],
        "x": [round(lasted * NS / scale, 5) for _, _, lasted in spans],
        "width": 0.82,
        "hovertext": [f"{name}: {units.seconds(lasted * NS)}" for _, _, lasted in spans],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": color, "line": {"width": 0}},
    }


def _color(of_work: bool, what: str) -> str:
    if of_work:
        return _WORKS[what][0]
    return charts.SKY if what == OPERATORS else _PHASE_COLORS[what]


def _layout(x_title: str, rows: Sequence[_Row], num_ranks: int) -> dict[str, Any]:
    layout = charts.bar_layout(x_title, [row.name for row in rows])
    layout["yaxis"]["fixedrange"] = True
    begins = [number for number, row in enumerate(rows) if row.name.endswith("host") and number]
    lines = [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": number - 0.5,
            "y1": number - 0.5,
            "line": {"color": charts.GREY, "width": 1},
        }
        for number in begins
    ]
    return {**layout, "barmode": "overlay", "shapes": lines if num_ranks > 1 else []}


def _title(drawn: Sequence[_Drawn]) -> str:
    numbers = {one.step.step for one in drawn}
    return f"Traced step {min(numbers)}" if len(numbers) == 1 else "A traced step of each rank"


def _zero(drawn: Sequence[_Drawn], *, one_clock: bool) -> str:
    if len(drawn) == 1:
        return "the step began"
    return "the first rank began the step" if one_clock else "each rank began its step"


def _how_to_read(mode: TracedMode, drawn: Sequence[_Drawn], num_ranks: int, *, one_clock: bool) -> str:
    words = (
        "A whole step of usual length under the profiler, which slows it. Where a row is empty, that part waits. Drag "
        "to zoom in."
    )
    if len(drawn) > 1 and one_clock:
        error = max(clock.error_ns for one in drawn if (clock := _clock(mode, one.rank)) is not None)
        words += f" All ranks on the first one's clock, to {units.seconds(error * NS)}."
    elif len(drawn) > 1:
        words += " Ranks are aligned at the begin of their step: it is not known whose was first."
    if len(drawn) < num_ranks:
        words += f" Drawn: the {len(drawn)} longest of {units.whole(num_ranks)} ranks."
    return words


def _words(one: _Drawn) -> str:
    """Return what the picture shows of a rank: how long each thing took."""
    lanes: dict[str, int] = {}
    for lane in one.step.lanes:
        key = lane_words(is_work(lane), lane.what) if lane.device == HOST else _device_words(lane)
        lanes[key] = lanes.get(key, 0) + sum(lane.spans_ns[1::2]) - sum(lane.spans_ns[::2])
    parts = ", ".join(f"{name} {units.seconds(lasted * NS)}" for name, lasted in lanes.items())
    finest = f" Gaps below {units.seconds(one.step.finest_ns * NS)} are filled."
    return f"{one.rank.name}, step {one.step.step}, {units.seconds(one.step.duration_ns * NS)}: {parts}.{finest}"


def _device_words(lane: Lane) -> str:
    return f"{WORK_WORDS[lane.what]} (GPU {lane.device})"


VIEW: View[Diagnosis] = View(name="traced_step", title="One traced step", build=build, applies=has_traces)
