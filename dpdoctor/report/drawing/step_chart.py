"""The steps of one launch on a time axis: a curve per rank, what is unmeasured or switched off, and what happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpdoctor import units
from dpdoctor.analysis import Rank
from dpdoctor.report.blocks import Chart
from dpdoctor.report.drawing import charts, lanes, slow_steps
from dpdoctor.report.drawing.slow_steps import Outlier
from dpdoctor.report.launches import NamedLaunch

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
    marks = slow_steps.marks(outliers, origin_ns=origin_ns, scale=scale, prefix=prefix)
    layout["showlegend"] = len(drawn) > 1 or bool(marks)
    below = [*lanes.events(drawn, origin_ns), *lanes.ablations(drawn[0], origin_ns)]
    return Chart(
        title=f"Steps of {named.title}",
        traces=(*_all_ranks(ranks, drawn, origin_ns, scale), *_curves(drawn, origin_ns, scale), *marks, *below),
        layout=lanes.with_windows(layout, drawn[0], named.launch.ranks, origin_ns, has_lanes=bool(below)),
        height=charts.height(115 if below else 90),
        how_to_read=_how_to_read(ranks, drawn, logarithmic=logarithmic is not None),
        alternative=" ".join([*map(_words, drawn), slow_steps.alternative(outliers)]),
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


def _words(rank: Rank) -> str:
    _, median, longest = _spread([step.duration_ns * NS for step in rank.steps])
    edges = sum(step.epoch_edge for step in rank.steps)
    return (
        f"Rank {rank.index}: {units.count(len(rank.steps), 'step')}, median {units.seconds(median)}, "
        f"longest {units.seconds(longest)}, {units.count(edges, 'epoch edge')}."
    )
