"""Bandwidth over the size of a collective: what was measured, and what latency and bandwidth alone would give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median_low
from typing import Any

import msgspec
import numpy as np

from dpdoctor import units
from dpdoctor.digest import CollectiveSize, SmallCalls
from dpdoctor.report.blocks import Absent, Block, Chart
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import clipped
from dpdoctor.report.traces.traced import TracedMode
from dpdoctor.report.traces.words import NS, seconds

LONGEST_NAME = 24
# Of an operation with more sizes those that took longest are drawn.
MOST_SIZES = 40
# Points of a curve that is drawn through a formula.
CURVE_POINTS = 24
GB = 1e9
WHAT = "Bandwidth by size"
ONE_SIZE = "no operation was called with two sizes that the trace knows"
HOW_TO_READ = (
    "Line: the median call, waiting included. Rings: the shortest. Dashed: latency + size / bandwidth, fitted to a "
    "rank's shortest calls; dotted: the bandwidth it tends to."
)
NO_FIT = (
    "a fit takes three sizes of one operation, the largest at least four times the smallest, each called three times "
    "on one rank, and times that follow the sizes"
)


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one size: bandwidths are algbw in bytes per second, size over duration (nccl-tests).

    Attributes:
        usual: at the median call of the middle rank.
        best: at the shortest call of any rank: who came last did not wait.
    """

    num_bytes: int
    usual: float
    best: float


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One operation in groups of one size, the smallest call first.

    `fit` is the one rank's fit whose bandwidth is the middle one; None: no rank has one. `rank` is its name.
    `num_sizes` are all that there are.
    """

    name: str
    points: tuple[Point, ...]
    num_sizes: int
    fit: SmallCalls | None
    rank: str = ""


def bandwidth_chart(mode: TracedMode) -> Iterator[Block]:
    """Yield the chart of the operations that took longest, or why there is none; and why a line has no fit."""
    lines = _lines(mode)
    drawn = [line for line in lines if len(line.points) > 1][: charts.MOST_SERIES]
    if not drawn:
        yield Absent(what=WHAT, reason=ONE_SIZE)
        return
    yield Chart(
        title=WHAT,
        traces=tuple(
            trace
            for line, color in zip(drawn, charts.SERIES_COLORS, strict=False)
            for trace in (*_measured(line, color), *_fitted(line, color))
        ),
        layout=_layout(drawn),
        height=charts.height(160, num_names=len(drawn)),
        how_to_read=HOW_TO_READ + _left_out(drawn),
        alternative=" ".join(map(_words, drawn)),
    )
    unfitted = [line.name for line in drawn if line.fit is None]
    if unfitted:
        yield Absent(what=f"The fitted line of {', '.join(unfitted)}", reason=NO_FIT)


def _lines(mode: TracedMode) -> list[Line]:
    """Return the operations by group size, the longest first."""
    found: dict[tuple[str, int | None], list[CollectiveSize]] = {}
    for rank in mode.ranks:
        for row in rank.digest.collectives:
            if row.num_bytes is not None and row.median_ns > 0 and row.min_ns > 0:
                found.setdefault((row.operation, row.group_size), []).append(row)
    longest = sorted(found.items(), key=lambda item: -sum(row.total_ns for row in item[1]))
    return [_line(mode, operation, group_size, rows) for (operation, group_size), rows in longest]


def _line(mode: TracedMode, operation: str, group_size: int | None, rows: Sequence[CollectiveSize]) -> Line:
    ranks = "" if group_size is None else f", {units.count(group_size, 'rank')}"
    by_size: dict[int, list[CollectiveSize]] = {}
    for row in rows:
        by_size.setdefault(row.num_bytes or 0, []).append(row)
    longest = sorted(by_size, key=lambda size: -sum(row.total_ns for row in by_size[size]))[:MOST_SIZES]
    fits = _fits(mode, operation, {row.group for row in rows})
    middle = median_low(sorted(fit.bandwidth_gb_s for fit, _ in fits)) if fits else None
    fit, rank = next(((fit, rank) for fit, rank in fits if fit.bandwidth_gb_s == middle), (None, ""))
    return Line(
        name=clipped(operation, LONGEST_NAME) + ranks,
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


def _point(num_bytes: int, rows: Sequence[CollectiveSize]) -> Point:
    usual, shortest = median_low(row.median_ns for row in rows), min(row.min_ns for row in rows)
    return Point(num_bytes=num_bytes, usual=num_bytes / (usual * NS), best=num_bytes / (shortest * NS))


def _left_out(lines: Sequence[Line]) -> str:
    if all(line.num_sizes == len(line.points) for line in lines):
        return ""
    return f" Of an operation with more sizes the {MOST_SIZES} that took longest are drawn."


def _measured(line: Line, color: str) -> list[dict[str, Any]]:
    sizes = [point.num_bytes for point in line.points]
    return [
        _trace(line.name, sizes, [point.usual for point in line.points], "median call")
        | {"mode": "lines+markers", "line": {"color": color, "width": 1.5}, "marker": {"color": color, "size": 8}},
        _trace(line.name, sizes, [point.best for point in line.points], "shortest call")
        | {"mode": "markers", "marker": {"color": color, "size": 11, "symbol": "circle-open"}, "showlegend": False},
    ]


def _fitted(line: Line, color: str) -> list[dict[str, Any]]:
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


def _layout(lines: Sequence[Line]) -> dict[str, Any]:
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


def _words(line: Line) -> str:
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
