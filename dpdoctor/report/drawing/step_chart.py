"""The steps of a launch over time: a curve per rank, rings around those that stand out, lanes of what happened below.

What stands out has a row in a table, which its ring leads to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from dpdoctor import units
from dpdoctor.analysis import FULL, Rank
from dpdoctor.analysis.slow_steps import SlowStep, slow_steps
from dpdoctor.report.blocks import Cell, Chart, Column, Paragraph, Table
from dpdoctor.report.drawing import charts
from dpdoctor.report.launches import NamedLaunch
from dpdoctor.report.text import NOTHING, amount_cell
from dpdoctor.report.words.step_parts import phase_words

NS = 1e-9
# Above this the slowest step would flatten all others on a linear axis.
LOGARITHMIC_RATIO = 8.0


def step_chart(named: NamedLaunch, ranks: Sequence[Rank], outliers: Sequence[Outlier], prefix: str) -> Chart:
    """Return the chart of the ranks' steps; every rank has a step. `prefix` is that of the outliers' anchors."""
    drawn, origin_ns = _slowest(ranks), named.origin_ns
    scale, unit = units.time_scale(max(step.duration_ns for rank in ranks for step in rank.steps) * NS)
    layout = charts.time_layout(unit)
    logarithmic = logarithmic_axis([step.duration_ns * NS for rank in ranks for step in rank.steps])
    if logarithmic is not None:
        scale, layout["yaxis"] = 1.0, logarithmic
    marks = _rings(outliers, origin_ns=origin_ns, scale=scale, prefix=prefix)
    layout["showlegend"] = len(drawn) > 1 or bool(marks)
    below = [*_event_lanes(drawn, origin_ns), *_ablation_lane(drawn[0], origin_ns)]
    return Chart(
        title=f"Steps of {named.title}",
        traces=(*_all_ranks(ranks, drawn, origin_ns, scale), *_curves(drawn, origin_ns, scale), *marks, *below),
        layout=with_windows(layout, drawn[0], named.launch.ranks, origin_ns, has_lanes=bool(below)),
        height=charts.height(115 if below else 90),
        how_to_read=_how_to_read(ranks, drawn, logarithmic=logarithmic is not None),
        alternative=" ".join([*map(_rank_words, drawn), _outliers_in_words(outliers)]),
    )


def logarithmic_axis(durations_s: Sequence[float], *, most_ticks: int = charts.MOST_TICKS) -> dict[str, Any] | None:
    """Return a logarithmic axis where a few durations are far longer than the rest, else None."""
    shortest, median, longest = _spread(durations_s)
    if shortest <= 0 or longest <= LOGARITHMIC_RATIO * median:
        return None
    return charts.logarithmic_seconds(shortest, longest, most_ticks=most_ticks)


def _slowest(ranks: Sequence[Rank]) -> list[Rank]:
    """Return the ranks to draw: all, or those with the longest median step, by index."""
    slowest = sorted(ranks, key=_median_s, reverse=True)[: charts.MOST_SERIES]
    return sorted(slowest, key=lambda rank: rank.index)


def _median_s(rank: Rank) -> float:
    return _spread([step.duration_ns * NS for step in rank.steps])[1]


def _spread(durations_s: Sequence[float]) -> tuple[float, float, float]:
    """Return the shortest, the middle and the longest."""
    ordered = sorted(durations_s)
    return ordered[0], ordered[len(ordered) // 2], ordered[-1]


def _curves(drawn: Sequence[Rank], origin_ns: int, scale: float) -> list[dict[str, Any]]:
    curves = []
    for rank, color in zip(drawn, charts.SERIES_COLORS, strict=False):
        x, y = charts.steps_with_holes(
            [((step.begin_ns - origin_ns) * NS, step.duration_ns * NS) for step in rank.steps]
        )
        curves.append(charts.line(name=f"rank {rank.index}", x=x, y=y, unit="s", scale=scale, color=color))
    return curves


def _all_ranks(ranks: Sequence[Rank], drawn: Sequence[Rank], origin_ns: int, scale: float) -> list[dict[str, Any]]:
    """Return the range of all ranks' steps as a band, where not every rank has a curve of its own."""
    if len(drawn) == len(ranks):
        return []
    by_number: dict[int, list[int]] = {}
    for rank in ranks:
        for step in rank.steps:
            by_number.setdefault(step.step, []).append(step.duration_ns)
    ends = {step.step: (step.begin_ns + step.duration_ns - origin_ns) * NS for step in drawn[0].steps}
    numbers = sorted(by_number.keys() & ends.keys())
    x = [ends[number] for number in numbers]
    lowest, highest = ([pick(by_number[number]) * NS for number in numbers] for pick in (min, max))
    return charts.band(name="all ranks", x=x, low=lowest, high=highest, scale=scale)


def _how_to_read(ranks: Sequence[Rank], drawn: Sequence[Rank], *, logarithmic: bool) -> str:
    words = "One line per rank; one above the others is a slow rank. Drag to zoom, double-click to undo."
    if logarithmic:
        words += " Logarithmic."
    if len(drawn) < len(ranks):
        words += (
            f" Drawn: the {len(drawn)} ranks with the longest median step, of {units.whole(len(ranks))}, with their "
            "events; the band reaches from the shortest to the longest step of all."
        )
    return words + charts.thinned_words(max(len(rank.steps) for rank in drawn))


def _rank_words(rank: Rank) -> str:
    _, median, longest = _spread([step.duration_ns * NS for step in rank.steps])
    edges = sum(step.epoch_edge for step in rank.steps)
    return (
        f"Rank {rank.index}: {units.count(len(rank.steps), 'step')}, median {units.seconds(median)}, "
        f"longest {units.seconds(longest)}, {units.count(edges, 'epoch edge')}."
    )


# The others cost less; how many they are is said.
MOST_OUTLIERS = 40
MOST_EVENTS = 3
OUTLIER_COLUMNS = (
    Column(title="Step", numeric=True),
    Column(title="Took", numeric=True),
    Column(title="Usually", numeric=True),
    Column(title="Times as long", numeric=True),
    Column(title="What took longer"),
    Column(title="What happened in it"),
)
OUTLIER_RULE = (
    "A step stands out where it takes at least a quarter longer than is usual for its rank and lies more than 3.5 "
    "robust standard deviations above that (median and median absolute deviation). Left out are windows of ablations, "
    "and steps in which an epoch began, an evaluation ran or a checkpoint was written."
)
NO_OUTLIER = "No measured step stands out."


class Outlier(msgspec.Struct, frozen=True, kw_only=True):
    """One step that stood out on one or more ranks, the longest first."""

    ranks: tuple[SlowStep, ...]

    @property
    def longest(self) -> SlowStep:
        """Return the step of the rank on which it took longest."""
        return self.ranks[0]

    @property
    def lost_ns(self) -> int:
        """Return by how much it was longer than usual there."""
        return self.longest.step.duration_ns - self.longest.usual_ns


def find_outliers(ranks: Sequence[Rank]) -> list[Outlier]:
    """Return the steps that stand out on any rank, those that lost most time first."""
    by_number: dict[int, list[SlowStep]] = {}
    for rank in ranks:
        for slow in slow_steps(rank):
            by_number.setdefault(slow.step.step, []).append(slow)
    found = [
        Outlier(ranks=tuple(sorted(slow, key=lambda one: one.step.duration_ns, reverse=True)))
        for slow in by_number.values()
    ]
    return sorted(found, key=lambda outlier: outlier.lost_ns, reverse=True)


def _rings(found: Sequence[Outlier], *, origin_ns: int, scale: float, prefix: str) -> list[dict[str, Any]]:
    """Return one trace of rings around the outliers that have a row; empty without any.

    `scale` is what one unit of the y axis is worth in seconds; `prefix` is that of the rows' anchors.
    """
    shown = found[:MOST_OUTLIERS]
    if not shown:
        return []
    longest = [outlier.longest for outlier in shown]
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "stands out",
            "x": [round((slow.step.begin_ns + slow.step.duration_ns - origin_ns) * NS, 4) for slow in longest],
            "y": [float(f"{slow.step.duration_ns * NS / scale:.6g}") for slow in longest],
            "text": [charts.plain(_outlier_words(outlier)) for outlier in shown],
            "customdata": [_anchor(prefix, outlier) for outlier in shown],
            "hovertemplate": "%{text}<br>Click for its row below.<extra></extra>",
            "marker": {"symbol": "circle-open", "size": 13, "color": charts.VERMILION, "line": {"width": 2}},
        }
    ]


def outlier_table(found: Sequence[Outlier], *, prefix: str) -> Table | Paragraph:
    """Return the outliers with what took longer in them and what was recorded meanwhile, or that there are none."""
    if not found:
        return Paragraph(text=f"{NO_OUTLIER} {OUTLIER_RULE}")
    more = f" Shown: the {MOST_OUTLIERS} longest of {units.whole(len(found))}." if len(found) > MOST_OUTLIERS else ""
    return Table(
        caption=f"Outlier steps, the costliest first.{more} {OUTLIER_RULE}",
        columns=OUTLIER_COLUMNS,
        rows=tuple(_outlier_row(outlier, prefix) for outlier in found[:MOST_OUTLIERS]),
    )


def _outliers_in_words(found: Sequence[Outlier]) -> str:
    """Return what the marks show, in words."""
    if not found:
        return NO_OUTLIER
    stand = "step stands" if len(found) == 1 else "steps stand"
    return f"{units.whole(len(found))} {stand} out; the costliest is {_outlier_words(found[0])}."


def _outlier_words(outlier: Outlier) -> str:
    slow = outlier.longest
    took, usual = units.seconds(slow.step.duration_ns * NS), units.seconds(slow.usual_ns * NS)
    return f"step {slow.step.step}, rank {slow.rank}: {took}, usually {usual}"


def _outlier_row(outlier: Outlier, prefix: str) -> tuple[Cell, ...]:
    slow = outlier.longest
    others = f", the longest of {units.count(len(outlier.ranks), 'rank')}" if len(outlier.ranks) > 1 else ""
    times = slow.step.duration_ns / slow.usual_ns if slow.usual_ns else None
    return (
        Cell(text=str(slow.step.step), anchor=_anchor(prefix, outlier), sort=slow.step.step),
        amount_cell(slow.step.duration_ns * NS, "s", note=f"rank {slow.rank}{others}"),
        amount_cell(slow.usual_ns * NS, "s"),
        amount_cell(times, "x", missing=NOTHING),
        Cell(text="; ".join(_phases(outlier))),
        Cell(text="; ".join(_events(outlier)) or NOTHING),
    )


def _anchor(prefix: str, outlier: Outlier) -> str:
    return f"{prefix}-{outlier.longest.step.step}"


def _phases(outlier: Outlier) -> Iterator[str]:
    """Yield each phase that took longer with the ranks on which it did; one rank alone comes first.

    Ranks that wait for one of them spend that in backward or in the optimizer, where they communicate.
    """
    phases = Counter(slow.phase for slow in outlier.ranks)
    for phase, number in sorted(phases.items(), key=lambda item: item[1]):
        of_phase = [slow for slow in outlier.ranks if slow.phase == phase]
        longest = max(of_phase, key=lambda slow: slow.longer_ns)
        where = f"rank {longest.rank}" if number == 1 else units.count(number, "rank")
        more = "" if number == 1 else "up to "
        yield f"{phase_words(phase)} on {where}: {more}{units.seconds(longest.longer_ns * NS)} more"


def _events(outlier: Outlier) -> Iterator[str]:
    """Yield what happened in the step on any of the ranks on which it stood out, the longest first."""
    events = [(event, slow.rank) for slow in outlier.ranks for event in slow.events]
    events.sort(key=lambda item: item[0].duration_ns, reverse=True)
    for event, rank in events[:MOST_EVENTS]:
        length = f" {units.seconds(event.duration_ns * NS)}" if event.duration_ns else ""
        detail = f" ({event.detail})" if event.detail else ""
        yield f"{event.kind}{length} on rank {rank}{detail}"
    if len(events) > MOST_EVENTS:
        yield f"{units.count(len(events) - MOST_EVENTS, 'more event')}"


EPOCH_EDGE = "epoch edge"
ABLATION = "ablation"
# Of a kind with more events than this the longest are drawn.
MOST_MARKS = 300
# Share of the chart's height under the curve that the lanes take.
LANES_RATIO = 0.2
# Share of the time axis that the name of a shaded stretch needs.
NAME_RATIO = 0.15

_Mark = tuple[float, float, str]


def _event_lanes(ranks: Sequence[Rank], origin_ns: int) -> list[dict[str, Any]]:
    """Return one trace of marks per kind of event, on the second y axis; empty without events."""
    kinds: dict[str, list[_Mark]] = {}
    for rank in ranks:
        for kind, mark in _marks(rank, origin_ns):
            kinds.setdefault(kind, []).append(mark)
    return [_lane(kind, marks, charts.SERIES_COLORS[-1 - i % 3]) for i, (kind, marks) in enumerate(kinds.items())]


def _ablation_lane(rank: Rank, origin_ns: int) -> list[dict[str, Any]]:
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


def _marks(rank: Rank, origin_ns: int) -> Iterator[tuple[str, _Mark]]:
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


def _lane(kind: str, marks: list[_Mark], color: str) -> dict[str, Any]:
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
