"""What is drawn around the curve of the steps: shaded windows, and a lane of marks per kind of event."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from dpdoctor import units
from dpdoctor.analysis import FULL, Rank
from dpdoctor.report.drawing import charts

NS = 1e-9
EPOCH_EDGE = "epoch edge"
ABLATION = "ablation"
# Of a kind with more events than this the longest are drawn.
MOST_MARKS = 300
# Share of the chart's height under the curve that the lanes take.
LANES_RATIO = 0.2
# Share of the time axis that the name of a shaded stretch needs.
NAME_RATIO = 0.15

Mark = tuple[float, float, str]


def events(ranks: Sequence[Rank], origin_ns: int) -> list[dict[str, Any]]:
    """Return one trace of marks per kind of event, on the second y axis; empty without events."""
    kinds: dict[str, list[Mark]] = {}
    for rank in ranks:
        for kind, mark in _marks(rank, origin_ns):
            kinds.setdefault(kind, []).append(mark)
    return [_lane(kind, marks, charts.SERIES_COLORS[-1 - i % 3]) for i, (kind, marks) in enumerate(kinds.items())]


def ablations(rank: Rank, origin_ns: int) -> list[dict[str, Any]]:
    """Return one trace with a bar for each window in which something was switched off; empty without any."""
    windows = [window for window in rank.windows if window.kind == "measure" and window.ablation != FULL]
    if not windows:
        return []
    x: list[float | None] = []
    words: list[str] = []
    for window in windows:
        x += [round((window.begin_ns - origin_ns) * NS, 4), round((window.end_ns - origin_ns) * NS, 4), None]
        words += [charts.plain(f"ablation {window.ablation}, round {window.round}")] * 2 + [""]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": ABLATION,
            "x": x,
            "y": [ABLATION] * len(x),
            "yaxis": "y2",
            "text": words,
            "hovertemplate": "%{text}<extra></extra>",
            "line": {"color": charts.GREEN, "width": 8},
            "showlegend": False,
        }
    ]


def _marks(rank: Rank, origin_ns: int) -> Iterator[tuple[str, Mark]]:
    """Yield (kind, (seconds, duration in seconds, words)) for the rank's epoch edges and recorded events."""
    for step in rank.steps:
        if step.epoch_edge:
            took = step.duration_ns * NS
            words = f"rank {rank.index}, step {step.step}, {units.seconds(took)}: an epoch began or an evaluation ran"
            yield EPOCH_EDGE, ((step.begin_ns - origin_ns) * NS, took, words)
    for event in rank.events:
        length = f", {units.seconds(event.duration_ns * NS)}" if event.duration_ns else ""
        detail = f": {charts.plain(event.detail)}" if event.detail else ""
        words = f"rank {rank.index}, step {event.step}{length}{detail}"
        yield event.kind, ((event.at_ns - origin_ns) * NS, event.duration_ns * NS, words)


def _lane(kind: str, marks: list[Mark], color: str) -> dict[str, Any]:
    shown = sorted(sorted(marks, key=lambda mark: mark[1], reverse=True)[:MOST_MARKS])
    left_out = (
        f"<br>(longest {units.whole(MOST_MARKS)} of {units.whole(len(marks))})" if len(shown) < len(marks) else ""
    )
    name = charts.plain(kind) + left_out
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [round(at, 4) for at, _, _ in shown],
        "y": [name for _ in shown],
        "yaxis": "y2",
        "text": [words for _, _, words in shown],
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
        "marker": {"symbol": "line-ns", "size": 10, "color": color, "line": {"width": 2, "color": color}},
        "showlegend": False,
    }


def with_windows(
    layout: dict[str, Any], shown: Rank, ranks: Sequence[Rank], origin_ns: int, *, has_lanes: bool
) -> dict[str, Any]:
    """Return the layout with the unmeasured windows of one rank shaded and named, and room for lanes of marks."""
    bands = unmeasured(shown, ranks, origin_ns)
    added: dict[str, Any] = {
        "legend": {"y": 1.08},
        "shapes": [shade(begin, end) for _, begin, end in bands],
        "annotations": _names(bands, max(step.begin_ns + step.duration_ns - origin_ns for step in shown.steps) * NS),
    }
    if has_lanes:
        added["yaxis"] = {**layout["yaxis"], "domain": [LANES_RATIO + 0.06, 1]}
        added["yaxis2"] = {"domain": [0, LANES_RATIO], "type": "category", "automargin": True, "fixedrange": True}
        added["xaxis"] = {**layout["xaxis"], "anchor": "y2"}
    return {**layout, **added}


def unmeasured(shown: Rank, ranks: Sequence[Rank], origin_ns: int) -> list[tuple[str, float, float]]:
    """Return (kind, begin, end) in seconds for each run of the shown rank's steps in a window that is not measured."""
    kinds = {window.window: window.kind for rank in ranks for window in rank.windows}
    return list(_bands(shown, kinds, origin_ns))


def _bands(rank: Rank, kinds: dict[int, str], origin_ns: int) -> Iterator[tuple[str, float, float]]:
    for kind, group in groupby(rank.steps, key=lambda step: kinds.get(step.window, "unfinished window")):
        steps = list(group)
        if kind != "measure":
            end_ns = steps[-1].begin_ns + steps[-1].duration_ns
            yield kind, (steps[0].begin_ns - origin_ns) * NS, (end_ns - origin_ns) * NS


def shade(begin: float, end: float) -> dict[str, Any]:
    """Return the shape that shades a stretch of the time axis over the whole height."""
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": round(begin, 4),
        "x1": round(end, 4),
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "line": {"width": 0},
        "fillcolor": charts.SHADE,
    }


def _names(bands: Sequence[tuple[str, float, float]], end: float) -> list[dict[str, Any]]:
    """Return the names above the bands; of neighbours one for all, or they would lie on each other."""
    groups: list[tuple[float, list[str]]] = []
    for kind, begin, _ in bands:
        if groups and begin - groups[-1][0] < NAME_RATIO * end:
            groups[-1][1].append(kind)
        else:
            groups.append((begin, [kind]))
    return [_name(", ".join(dict.fromkeys(kinds)), begin, end) for begin, kinds in groups]


def _name(words: str, begin: float, end: float) -> dict[str, Any]:
    return {
        "text": charts.plain(words),
        "xref": "x",
        "yref": "paper",
        "x": round(begin, 4),
        "y": 1,
        "xanchor": "left" if begin < (1 - NAME_RATIO) * end else "right",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 11},
    }
