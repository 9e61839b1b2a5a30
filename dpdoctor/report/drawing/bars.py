"""Horizontal bars of figures, each with its interval as a whisker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpdoctor.analysis import Figure
from dpdoctor.report.blocks import Chart
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import figure_text, with_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar; its figure is known."""

    name: str
    figure: Figure
    color: str


def interval_bars(*, title: str, bars: Sequence[Bar], x_title: str, how_to_read: str) -> Chart:
    """Return bars of figures of one unit, in this order from the top; there is at least one."""
    largest = max(abs(bar.figure.high or bar.figure.value or 0.0) for bar in bars)
    scale, unit = charts.axis_scale(bars[0].figure.unit, largest)
    trace = {
        "type": "bar",
        "orientation": "h",
        "name": "",
        "y": [*range(len(bars))],
        "x": [(bar.figure.value or 0.0) / scale for bar in bars],
        "hovertext": [charts.plain(f"{bar.name}: {with_interval(bar.figure)}") for bar in bars],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": [bar.color for bar in bars]},
    }
    return Chart(
        title=title,
        traces=(trace | charts.whiskers([bar.figure for bar in bars], scale),),
        layout=_layout(f"{unit} {x_title}", [f"{bar.name}  {figure_text(bar.figure)}" for bar in bars]),
        height=110 + 38 * len(bars),
        how_to_read=how_to_read,
        alternative=" ".join(f"{bar.name}: {with_interval(bar.figure)}." for bar in bars),
    )


def _layout(x_title: str, names: Sequence[str]) -> dict[str, object]:
    layout = charts.bar_layout(x_title)
    # Rows go by place, not by name: plotly would put two of one name onto each other.
    layout["yaxis"] |= {"tickmode": "array", "tickvals": [*range(len(names))], "ticktext": [*map(charts.plain, names)]}
    return {**layout, "showlegend": False, "bargap": 0.35}
