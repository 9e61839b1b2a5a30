"""The communication of each mode by operation and size of the call, and how fast it went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median_low
from typing import Any

import msgspec
import numpy as np

from dpdoctor import units
from dpdoctor.analysis import Diagnosis
from dpdoctor.digest import CollectiveSize, SmallCalls
from dpdoctor.report.blocks import Absent, Block, Cell, Chart, Column, Fold, Note, Table, View
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import NOTHING, amount_cell, clipped, name_cell, whole_cell
from dpdoctor.report.traces.traced import TracedMode, by_mode, focused, has_traces
from dpdoctor.report.traces.words import NS, seconds, time_cell

MOST_ROWS = 40
MOST_OPERATIONS = 12
LONGEST_NAME = 40
COLUMNS = (
    Column(title="Operation"),
    Column(title="Size", numeric=True),
    Column(title="Ranks in the group", numeric=True),
    Column(title="Calls per rank", numeric=True),
    Column(title="Time per rank", numeric=True),
    Column(title="Exposed", numeric=True),
    Column(title="Median call", numeric=True),
    Column(title="algbw", numeric=True),
    Column(title="busbw", numeric=True),
)
NO_SIZE = "the trace does not say how large its tensors were"
NO_FACTOR = (
    "how busy that keeps the links depends on the number of ranks or the operation, which the trace does not say"
)
BANDWIDTH = (
    "Figures are of the whole trace. Exposed is the share of a call's time in which nothing computed. Durations "
    "include waiting for other ranks, so the bandwidths of single ranks are lower bounds of what the network gives. "
    "algbw is size over duration and busbw what each link carried, as nccl-tests define them. "
    "By size: a median far below its dashed line waited; where that line still rises, latency decides."
)
LONGEST_LINE_NAME = 24
# Of an operation with more sizes those that took longest are drawn.
MOST_POINTS = 40
# Points of a curve that is drawn through a formula.
CURVE_POINTS = 24
GB = 1e9
BY_SIZE = "Bandwidth by size"
ONE_SIZE = "no operation was called with two sizes that the trace knows"
HOW_TO_READ_LINES = (
    "Line: the median call, waiting included. Rings: the shortest. Dashed: latency + size / bandwidth, fitted to a "
    "rank's shortest calls; dotted: the bandwidth it tends to."
)
NO_FIT = (
    "a fit takes three sizes of one operation, the largest at least four times the smallest, each called three times "
    "on one rank, and times that follow the sizes"
)


class _Size(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one operation, size and number of ranks, over the ranks that are here."""

    rows: tuple[CollectiveSize, ...]
    num_ranks: int

    @property
    def total_ns(self) -> float:
        return sum(row.total_ns for row in self.rows) / self.num_ranks

    @property
    def exposed_ns(self) -> float:
        return sum(row.exposed_ns for row in self.rows) / self.num_ranks

    @property
    def middle(self) -> CollectiveSize:
        """Return the rank whose median call is the middle one, so that its duration and bandwidths belong together."""
        duration = median_low(row.median_ns for row in self.rows)
        return next(row for row in self.rows if row.median_ns == duration)


class _Point(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one size: bandwidths are algbw in bytes per second, size over duration (nccl-tests).

    Attributes:
        usual: at the median call of the middle rank.
        best: at the shortest call of any rank: who came last did not wait.
    """

    num_bytes: int
    usual: float
    best: float


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """One operation in groups of one size, the smallest call first.

    `fit` is the one rank's fit whose bandwidth is the middle one; None: no rank has one. `rank` is its name.
    `num_sizes` are all that there are.
    """

    name: str
    points: tuple[_Point, ...]
    num_sizes: int
    fit: SmallCalls | None
    rank: str = ""


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode a chart by operation, a table and a chart by size, and the table of small calls."""
    return by_mode(analysis, "Collectives", _mode)


def _mode(mode: TracedMode) -> Sequence[Block] | str:
    sizes = _sizes(mode)
    if not sizes:
        unknown = mode.traces.why_unknown
        if unknown is not None:
            return unknown
        alone = mode.summary.world_size == 1 and len(mode.ranks) == 1
        return "one process calls no collective" if alone else "the traces hold no collective"
    return [
        _chart(sizes),
        *_bandwidth_chart(mode),
        Fold(title="Calls by operation and size", blocks=(_table(sizes), *_small_calls(mode))),
        Note(text=BANDWIDTH),
    ]


def _sizes(mode: TracedMode) -> list[_Size]:
    """Return what all ranks called, the longest first."""
    found: dict[tuple[str, int | None, int | None], list[CollectiveSize]] = {}
    for rank in mode.ranks:
        for row in rank.digest.collectives:
            found.setdefault((row.operation, row.num_bytes, row.group_size), []).append(row)
    sizes = [_Size(rows=tuple(rows), num_ranks=len(mode.ranks)) for rows in found.values()]
    return sorted(sizes, key=lambda size: size.total_ns, reverse=True)


def _chart(sizes: Sequence[_Size]) -> Chart:
    totals: dict[str, tuple[float, float]] = {}
    for size in sizes:
        exposed, hidden = totals.get(size.middle.operation, (0.0, 0.0))
        totals[size.middle.operation] = (exposed + size.exposed_ns, hidden + size.total_ns - size.exposed_ns)
    longest = dict(sorted(totals.items(), key=lambda item: -sum(item[1]))[:MOST_OPERATIONS])
    scale, unit = units.time_scale(max(map(sum, longest.values())) * NS)
    layout = charts.bar_layout(f"{unit} per rank, whole trace", [clipped(name, LONGEST_NAME) for name in longest])
    return Chart(
        title="Communication by operation",
        traces=(
            _bars("exposed", (charts.VERMILION, charts.LIGHT_INK), longest, 0, scale),
            _bars("beside compute", (charts.SKY, charts.DARK_INK), longest, 1, scale),
        ),
        layout={**layout, "barmode": "stack", "bargap": 0.4},
        height=charts.height(30 * len(longest)),
        how_to_read="Only the exposed part costs time. Calls that run at the same time are both counted.",
        alternative=" ".join(
            f"{name}: {seconds(exposed)} exposed, {seconds(hidden)} beside compute."
            for name, (exposed, hidden) in longest.items()
        ),
    )


def _bars(
    name: str, colors: tuple[str, str], totals: dict[str, tuple[float, float]], which: int, scale: float
) -> dict[str, Any]:
    return charts.stacked_part(
        name=name,
        colors=colors,
        y=[*range(len(totals))],
        x=[pair[which] * NS / scale for pair in totals.values()],
        ratios=[pair[which] / sum(pair) if sum(pair) else 0.0 for pair in totals.values()],
        words=[f"{operation}, {name}: {seconds(pair[which])}" for operation, pair in totals.items()],
    )


def _table(sizes: Sequence[_Size]) -> Table:
    hidden = len(sizes) - MOST_ROWS
    more = f" {units.count(hidden, 'more size')} took less time." if hidden > 0 else ""
    return Table(
        caption=f"Collectives by operation and size, the longest first; means over ranks.{more}",
        columns=COLUMNS,
        rows=tuple(_row(size) for size in sizes[:MOST_ROWS]),
    )


def _row(size: _Size) -> tuple[Cell, ...]:
    middle = size.middle
    return (
        name_cell(middle.operation, LONGEST_NAME),
        Cell(text="unknown", footnote=NO_SIZE) if middle.num_bytes is None else amount_cell(middle.num_bytes, "bytes"),
        whole_cell(middle.group_size),
        amount_cell(sum(row.count for row in size.rows) / size.num_ranks, ""),
        time_cell(size.total_ns),
        amount_cell(size.exposed_ns / size.total_ns if size.total_ns else None, "ratio", missing=NOTHING),
        time_cell(middle.median_ns),
        _bandwidth(middle.algbw_gb_s, NO_SIZE),
        _bandwidth(middle.busbw_gb_s, NO_SIZE if middle.num_bytes is None else NO_FACTOR),
    )


def _bandwidth(value: float | None, why_unknown: str) -> Cell:
    if value is None:
        return Cell(text="unknown", footnote=why_unknown)
    return _rate_cell(value)


def _rate_cell(gb_s: float) -> Cell:
    return Cell(text=_rate(gb_s * GB), sort=gb_s * GB)


def _small_calls(mode: TracedMode) -> Iterator[Block]:
    """Yield how much goes to calls that latency alone decides; nothing where no trace has sizes enough to tell."""
    found: dict[str, list[SmallCalls]] = {}
    for rank in mode.ranks:
        for row in rank.digest.small_calls:
            found.setdefault(row.operation, []).append(row)
    if found:
        yield Table(
            caption="Calls too small for their size to matter: fewer, larger ones would take less time.",
            columns=(
                Column(title="Operation"),
                Column(title="Smaller than", numeric=True),
                Column(title="Such calls", numeric=True),
                Column(title="Their time", numeric=True),
                Column(title="Exposed", numeric=True),
                Column(title="Latency of a call", numeric=True),
                Column(title="Bandwidth of a call", numeric=True),
            ),
            rows=tuple(_small_row(rows) for rows in found.values()),
        )


def _small_row(rows: Sequence[SmallCalls]) -> tuple[Cell, ...]:
    """Return the row of the rank and group to which such calls cost most."""
    worst = max(rows, key=lambda row: row.small_total_ns)
    group = f"group {clipped(worst.group, LONGEST_NAME)}" if worst.group else ""
    return (
        name_cell(worst.operation, LONGEST_NAME, note=group),
        amount_cell(worst.limit_bytes, "bytes"),
        whole_cell(worst.small_count, note=f"of {units.whole(worst.count)} with a known size"),
        time_cell(worst.small_total_ns),
        time_cell(worst.small_exposed_ns),
        time_cell(worst.latency_ns),
        _rate_cell(worst.bandwidth_gb_s),
    )


def _bandwidth_chart(mode: TracedMode) -> Iterator[Block]:
    """Yield the chart of the operations that took longest, or why there is none; and why a line has no fit."""
    lines = _lines(mode)
    drawn = [line for line in lines if len(line.points) > 1][: charts.MOST_SERIES]
    if not drawn:
        yield Absent(what=BY_SIZE, reason=ONE_SIZE)
        return
    yield Chart(
        title=BY_SIZE,
        traces=tuple(
            trace
            for line, color in zip(drawn, charts.SERIES_COLORS, strict=False)
            for trace in (*_measured(line, color), *_fitted(line, color))
        ),
        layout=_bandwidth_layout(drawn),
        height=charts.height(160, num_names=len(drawn)),
        how_to_read=HOW_TO_READ_LINES + _left_out(drawn),
        alternative=" ".join(map(_words, drawn)),
    )
    unfitted = [line.name for line in drawn if line.fit is None]
    if unfitted:
        yield Absent(what=f"The fitted line of {', '.join(unfitted)}", reason=NO_FIT)


def _lines(mode: TracedMode) -> list[_Line]:
    """Return the operations by group size, the longest first."""
    found: dict[tuple[str, int | None], list[CollectiveSize]] = {}
    for rank in mode.ranks:
        for row in rank.digest.collectives:
            if row.num_bytes is not None and row.median_ns > 0 and row.min_ns > 0:
                found.setdefault((row.operation, row.group_size), []).append(row)
    longest = sorted(found.items(), key=lambda item: -sum(row.total_ns for row in item[1]))
    return [_line(mode, operation, group_size, rows) for (operation, group_size), rows in longest]


def _line(mode: TracedMode, operation: str, group_size: int | None, rows: Sequence[CollectiveSize]) -> _Line:
    ranks = "" if group_size is None else f", {units.count(group_size, 'rank')}"
    by_size: dict[int, list[CollectiveSize]] = {}
    for row in rows:
        by_size.setdefault(row.num_bytes or 0, []).append(row)
    longest = sorted(by_size, key=lambda size: -sum(row.total_ns for row in by_size[size]))[:MOST_POINTS]
    fits = _fits(mode, operation, {row.group for row in rows})
    middle = median_low(sorted(fit.bandwidth_gb_s for fit, _ in fits)) if fits else None
    fit, rank = next(((fit, rank) for fit, rank in fits if fit.bandwidth_gb_s == middle), (None, ""))
    return _Line(
        name=clipped(operation, LONGEST_LINE_NAME) + ranks,
        points=tuple(_point(size, by_size[size]) for size in sorted(longest)),
        num_sizes=len(by_size),
        fit=fit,
        rank=rank,
    )


def _fits(mode: TracedMode, operation: str, groups: set[str]) -> list[tuple[SmallCalls, str]]:
    return [
        (fit, rank.name)
        for rank in mode.ranks
        for fit in rank.digest.small_calls
        if fit.operation == operation and fit.group in groups
    ]


def _point(num_bytes: int, rows: Sequence[CollectiveSize]) -> _Point:
    usual, shortest = median_low(row.median_ns for row in rows), min(row.min_ns for row in rows)
    return _Point(num_bytes=num_bytes, usual=num_bytes / (usual * NS), best=num_bytes / (shortest * NS))


def _left_out(lines: Sequence[_Line]) -> str:
    if all(line.num_sizes == len(line.points) for line in lines):
        return ""
    return f" Of an operation with more sizes the {MOST_POINTS} that took longest are drawn."


def _measured(line: _Line, color: str) -> list[dict[str, Any]]:
    sizes = [point.num_bytes for point in line.points]
    return [
        _trace(line.name, sizes, [point.usual for point in line.points], "median call")
        | {"mode": "lines+markers", "line": {"color": color, "width": 1.5}, "marker": {"color": color, "size": 8}},
        _trace(line.name, sizes, [point.best for point in line.points], "shortest call")
        | {"mode": "markers", "marker": {"color": color, "size": 11, "symbol": "circle-open"}, "showlegend": False},
    ]


def _fitted(line: _Line, color: str) -> list[dict[str, Any]]:
    """Return the curve of the fit over the measured sizes, and the bandwidth that it tends to."""
    if line.fit is None:
        return []
    ends = line.points[0].num_bytes, line.points[-1].num_bytes
    sizes = [float(size) for size in np.geomspace(*ends, CURVE_POINTS)]
    limit = line.fit.bandwidth_gb_s * GB
    curve = [size / (line.fit.latency_ns * NS + size / limit) for size in sizes]
    drawn: dict[str, Any] = {"mode": "lines", "showlegend": False}
    return [
        _trace(line.name, sizes, curve, "fit") | drawn | {"line": {"color": color, "width": 1.5, "dash": "dash"}},
        _trace(line.name, [float(ends[0]), float(ends[1])], [limit, limit], "limit of the fit")
        | drawn
        | {"line": {"color": color, "width": 1, "dash": "dot"}},
    ]


def _trace(name: str, sizes: Sequence[float], bandwidths: Sequence[float], what: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": charts.plain(name),
        "x": [float(f"{size:.6g}") for size in sizes],
        "y": [float(f"{bandwidth:.6g}") for bandwidth in bandwidths],
        "text": [
            charts.plain(f"{name}, {what}: {units.size(size)}, {_rate(bandwidth)}")
            for size, bandwidth in zip(sizes, bandwidths, strict=True)
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _bandwidth_layout(lines: Sequence[_Line]) -> dict[str, Any]:
    points = [point for line in lines for point in line.points]
    sizes = [point.num_bytes for point in points]
    bandwidths = [rate for point in points for rate in (point.usual, point.best)]
    bandwidths += [line.fit.bandwidth_gb_s * GB for line in lines if line.fit]
    return {
        "xaxis": {**charts.logarithmic(min(sizes), max(sizes), units.size), "title": {"text": "size of the call"}},
        "yaxis": {**charts.logarithmic(min(bandwidths), max(bandwidths), _rate), "title": {"text": "algbw"}},
        "hovermode": "closest",
        "showlegend": True,
    }


def _words(line: _Line) -> str:
    points = ", ".join(
        f"{units.size(point.num_bytes)} at {_rate(point.usual)} (shortest call {_rate(point.best)})"
        for point in line.points
    )
    if line.fit is None:
        return f"{line.name}: {points}; no fit."
    fit = f"{seconds(line.fit.latency_ns)} + size / {_rate(line.fit.bandwidth_gb_s * GB)}"
    return f"{line.name}: {points}; the fit of {line.rank} is {fit}."


def _rate(bytes_per_s: float) -> str:
    return f"{units.size(bytes_per_s)}/s"


def result(analysis: Diagnosis) -> str:
    """Return the collective that the leading mode spends most time in."""
    for mode in focused(analysis):
        sizes = _sizes(mode)
        if sizes:
            total, exposed = defaultdict[str, float](float), defaultdict[str, float](float)
            for size in sizes:
                total[size.middle.operation] += size.total_ns
                exposed[size.middle.operation] += size.exposed_ns
            longest = max(total, key=lambda operation: total[operation])
            share = units.share(exposed[longest] / total[longest]) if total[longest] else "0%"
            kinds = units.count(len(total), "operation")
            return f"{mode.mode}: {kinds}, most time in {longest}, {share} of it exposed"
    return ""


VIEW: View[Diagnosis] = View(
    name="collectives",
    title="Collectives",
    build=build,
    applies=has_traces,
    result=result,
    is_half=True,
)
