"""Horizontal bars: figures with their intervals as whiskers, or shares of one thing stacked in a row per device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dpdoctor import units
from dpdoctor.analysis import Figure
from dpdoctor.report.blocks import Chart
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import clipped, figure_text, with_interval


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One bar; its figure is known."""

    name: str
    figure: Figure
    color: str


def interval_bars(*, title: str, bars: Sequence[Bar], x_title: str, how_to_read: str) -> Chart:
    """Return bars of figures of one unit, in this order from the top; there is at least one."""
    largest = max(abs(bar.figure.high or bar.figure.value or 0.0) for bar in bars)
    scale, unit = charts.axis_scale(bars[0].figure.unit, largest)
    trace = charts.bar(
        name="",
        color=[bar.color for bar in bars],
        x=[(bar.figure.value or 0.0) / scale for bar in bars],
        words=[f"{bar.name}: {with_interval(bar.figure)}" for bar in bars],
    )
    layout = charts.bar_layout(f"{unit} {x_title}", [f"{bar.name}  {figure_text(bar.figure)}" for bar in bars])
    return Chart(
        title=title,
        traces=(trace | charts.whiskers([bar.figure for bar in bars], scale),),
        layout={**layout, "showlegend": False, "bargap": 0.35},
        height=charts.height(28 * len(bars), num_names=0),
        how_to_read=how_to_read,
        alternative=" ".join(f"{bar.name}: {with_interval(bar.figure)}." for bar in bars),
    )


# More rows in one picture cannot be read; the table has them all.
MOST_ROWS = 32
LONGEST_NAME = 24


class StackedBar(msgspec.Struct, frozen=True, kw_only=True):
    """One bar: the share of each part, and how long that is; a part that is missing is unknown, or nothing."""

    name: str
    ratios: Mapping[str, float]
    amounts: Mapping[str, str]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One colour of the bars: its key in a row, its name and (colour, ink on it)."""

    key: str
    name: str
    colors: tuple[str, str]


def share_bars(
    *, title: str, whole: str, rows: Sequence[StackedBar], parts: Sequence[Part], how_to_read: str, is_full: bool = True
) -> Chart:
    """Return bars of the shares of `whole`; of many rows the first ones, which the words say.

    `is_full`: the axis reaches to 100% whatever the bars do.
    """
    drawn = rows[:MOST_ROWS]
    layout = charts.bar_layout(f"% of {whole}", [clipped(row.name, LONGEST_NAME) for row in drawn])
    if is_full:
        layout["xaxis"]["range"] = [0, 100]
    left_out = f" Drawn: the first {len(drawn)} of {units.whole(len(rows))}." if len(drawn) < len(rows) else ""
    return Chart(
        title=title,
        traces=tuple(_bar(part, drawn) for part in parts),
        layout={**layout, "barmode": "stack", "bargap": 0.35},
        height=charts.height(28 * len(drawn), num_names=len(parts)),
        how_to_read=how_to_read + left_out,
        alternative=" ".join(_words(row, parts) for row in drawn),
    )


def _bar(part: Part, rows: Sequence[StackedBar]) -> dict[str, Any]:
    ratios = [row.ratios.get(part.key, 0.0) for row in rows]
    return charts.stacked_part(
        name=part.name,
        colors=part.colors,
        y=[*range(len(rows))],
        x=[100 * ratio for ratio in ratios],
        ratios=ratios,
        words=[
            f"{row.name}, {part.name}: {units.share(ratio)}, {row.amounts.get(part.key, units.seconds(0))}"
            for row, ratio in zip(rows, ratios, strict=True)
        ],
    )


def _words(row: StackedBar, parts: Sequence[Part]) -> str:
    shown = [f"{part.name} {units.share(ratio)}" for part in parts if (ratio := row.ratios.get(part.key))]
    return f"{row.name}: {', '.join(shown) or 'nothing'}."
