"""Charts, as plotly.js reads them: colours, axes and traces that all share, and bars of figures or of shares."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dpdoctor import units
from dpdoctor.analysis import Figure
from dpdoctor.report.blocks import Chart
from dpdoctor.report.text import amount, clipped, figure_text, with_interval

# More rows in one picture cannot be read; the table has them all.
MOST_ROWS = 32
LONGEST_ROW_NAME = 24
# Okabe and Ito (2008), Color Universal Design: told apart with any kind of colour vision.
# Their yellow is left out: too pale on white.
BLUE, SKY, GREEN, ORANGE, VERMILION, PURPLE, GREY = (
    "#0072B2",
    "#56B4E9",
    "#009E73",
    "#E69F00",
    "#D55E00",
    "#CC79A7",
    "#8A8F98",
)
SERIES_COLORS = (BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, GREY)
# More curves in one picture cannot be told apart; the longest or first are drawn and the reader is told.
MOST_SERIES = 7
MOST_POINTS = 800
# A stretch without steps of this share of the time axis is no part of the curve.
SEEN = 0.02
# Of a logarithmic axis; where 1, 2 and 5 of each decade would be more, 1 alone has a tick.
MOST_TICKS = 12
SHADE = "rgba(138, 143, 152, 0.18)"
# A narrower part of a bar has no room for its own number; hovering and the words below have it.
LABELLED_RATIO = 0.08
# Of a chart's height: its horizontal axis with a title, what stands above it, and a line of a legend there.
AXIS_PX, HEAD_PX, LEGEND_LINE_PX = 46, 12, 20
# So many names of parts stand on one line of a legend where a chart has half of a page.
LEGEND_NAMES = 3
# What text on a colour is written in.
LIGHT_INK, DARK_INK = "#FFFFFF", "#10161D"


def plain(value: str) -> str:
    """Return text from a run so that plotly, which reads a subset of HTML and TeX in its labels, shows it as it is."""
    return html.escape(value, quote=False).replace("$", "&#36;")


def axis_scale(unit: str, largest: float) -> tuple[float, str]:
    """Return (what one axis unit is worth, its name) for values in `unit` up to `largest`."""
    if unit == "s":
        return units.time_scale(largest)
    if unit == "bytes":
        return units.size_scale(largest)
    return (0.01, "%") if unit == "ratio" else (1.0, unit)


def height(drawn_px: int, *, num_names: int = 1) -> int:
    """Return the height in CSS pixels of a chart whose rows or curves have so many, with a legend of so many names."""
    return HEAD_PX + LEGEND_LINE_PX * math.ceil(num_names / LEGEND_NAMES) + drawn_px + AXIS_PX


def line(
    *, name: str, x: Sequence[float], y: Sequence[float | None], unit: str, scale: float, color: str
) -> dict[str, Any]:
    """Return a curve over time in seconds, thinned to its extremes; hovering shows values with their unit.

    `y` is in `unit`, None leaves a gap; `scale` is what one axis unit is worth.
    """
    kept = thin(y, MOST_POINTS)
    shown = [(x[i], y[i]) for i in kept]
    labels = ["" if value is None else amount(value, unit) for _, value in shown]
    return {
        "type": "scatter",
        "mode": "lines" if len(shown) > 2 else "lines+markers",
        "name": plain(name),
        "x": [_drawn(at) for at, _ in shown],
        "y": [None if value is None else _drawn(value / scale, 4) for _, value in shown],
        "text": labels,
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
        "line": {"color": color, "width": 1.5},
        "opacity": 0.85,
    }


def with_holes(
    begins: Sequence[float], ends: Sequence[float], y: Sequence[float | None], longest: float
) -> tuple[list[float], list[float | None]]:
    """Return (x, y) of a curve over `ends` that is interrupted where nothing was for more than `longest` seconds.

    `begins`: of what each value is of, in order; of readings the same as `ends`.
    """
    x: list[float] = []
    values: list[float | None] = []
    for begin, end, value in zip(begins, ends, y, strict=True):
        if x and begin - x[-1] > longest:
            x.append((x[-1] + begin) / 2)
            values.append(None)
        x.append(end)
        values.append(value)
    return x, values


def steps_with_holes(steps: Sequence[tuple[float, float]]) -> tuple[list[float], list[float | None]]:
    """Return (x, y) of steps, of each its seconds of begin and duration: at its end, how long it took.

    There is a hole where no step ran for so long that it is seen: another launch began, or something was prepared.
    """
    ends = [begin + duration for begin, duration in steps]
    longest = SEEN * (max(ends) - min(ends))
    return with_holes([begin for begin, _ in steps], ends, [duration for _, duration in steps], longest)


def time_layout(y_title: str) -> dict[str, Any]:
    """Return the layout of curves over the time since a launch began, from zero."""
    return {
        "xaxis": {"title": {"text": "time since launch (s)"}, "rangemode": "nonnegative", "automargin": True},
        "yaxis": {"title": {"text": plain(y_title)}, "rangemode": "tozero", "automargin": True},
        "hovermode": "closest",
        "showlegend": True,
    }


def band(
    *, name: str, x: Sequence[float], low: Sequence[float], high: Sequence[float], scale: float
) -> list[dict[str, Any]]:
    """Return the range between two curves as a shaded area: two traces, thinned to the extremes of either.

    `scale` is what one axis unit is worth in the unit of `low` and `high`.
    """
    kept = sorted({*thin(low, MOST_POINTS), *thin(high, MOST_POINTS)})
    edge = {
        "type": "scatter",
        "mode": "lines",
        "x": [_drawn(x[i]) for i in kept],
        "line": {"width": 0},
        "hoverinfo": "skip",
    }
    return [
        {**edge, "name": name, "y": [_drawn(low[i] / scale) for i in kept], "showlegend": False},
        {**edge, "name": name, "y": [_drawn(high[i] / scale) for i in kept], "fill": "tonexty", "fillcolor": SHADE},
    ]


def logarithmic_seconds(shortest: float, longest: float, *, most_ticks: int = MOST_TICKS) -> dict[str, Any]:
    """Return a logarithmic axis for seconds."""
    return logarithmic(shortest, longest, units.seconds, most_ticks=most_ticks)


def logarithmic(
    least: float, most: float, words: Callable[[float], str], *, most_ticks: int = MOST_TICKS
) -> dict[str, Any]:
    """Return a logarithmic axis for values above 0; `words` gives the label of a tick."""
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    digits = (1, 2, 5) if 3 * (last - first + 1) <= most_ticks else (1,)
    ticks = [digit * 10.0**decade for decade in range(first, last + 1) for digit in digits]
    return {
        "type": "log",
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [words(tick) for tick in ticks],
        "automargin": True,
    }


def bar_layout(x_title: str, rows: Sequence[str] = ()) -> dict[str, Any]:
    """Return the layout of horizontal bars, first row on top, from zero.

    `rows`: their names, as they come from the run. A bar's y is then the place of its row: by name, plotly would put
    two of one name onto each other.
    """
    by_place = {"tickmode": "array", "tickvals": [*range(len(rows))], "ticktext": [*map(plain, rows)]} if rows else {}
    return {
        "xaxis": {"title": {"text": plain(x_title)}, "rangemode": "tozero", "automargin": True},
        "yaxis": {"autorange": "reversed", "automargin": True, "showgrid": False, "ticksuffix": "  ", **by_place},
        "uniformtext": {"minsize": 10, "mode": "hide"},
        "hovermode": "closest",
        "showlegend": True,
    }


def bar_trace(*, name: str, color: str | list[str], x: Sequence[float], words: Sequence[str]) -> dict[str, Any]:
    """Return a horizontal bar in each row, by place; `words` show on hovering, as they come from the run."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": plain(name),
        "y": [*range(len(x))],
        "x": [_drawn(value) for value in x],
        "hovertext": [plain(text) for text in words],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": color},
    }


def stacked_part(
    *,
    name: str,
    colors: tuple[str, str],
    y: Sequence[str | int],
    x: Sequence[float],
    ratios: Sequence[float],
    words: Sequence[str],
) -> dict[str, Any]:
    """Return one part of stacked horizontal bars, with its share on it where there is room; `words` show on hovering.

    `colors` are that of the bar and of the ink on it; texts are as they come from the run.
    """
    color, ink = colors
    return {
        "type": "bar",
        "orientation": "h",
        "name": plain(name),
        "y": list(y),
        "x": [_drawn(value) for value in x],
        "text": [units.share(ratio) if ratio >= LABELLED_RATIO else "" for ratio in ratios],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "insidetextfont": {"color": ink},
        "textangle": 0,
        "constraintext": "inside",
        "hovertext": [plain(text) for text in words],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": color},
        "showlegend": any(ratios),  # a colour that is nowhere needs no name
    }


def whisker(low: float | None, high: float | None, scale: float) -> float | None:
    """Return the half length of an error bar, in axis units; None where an end is unknown."""
    return None if low is None or high is None else (high - low) / scale


def whiskers(figures: Sequence[Figure], scale: float) -> dict[str, Any]:
    """Return the error bars of horizontal bars; nothing where no figure has an interval: plotly would draw ends."""
    if all(figure.low is None for figure in figures):
        return {}
    return {
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [whisker(figure.value, figure.high, scale) for figure in figures],
            "arrayminus": [whisker(figure.low, figure.value, scale) for figure in figures],
            "thickness": 1.5,
            "width": 4,
        }
    }


def thinned_words(num_points: int) -> str:
    """Return what was left out of a curve of so many points; empty when nothing was."""
    if num_points <= MOST_POINTS:
        return ""
    return f" Of each {neighbours(num_points, MOST_POINTS)} neighbouring points the lowest and the highest are drawn."


def thin(values: Sequence[float | None], most: int) -> list[int]:
    """Return the indices of about `most` points, in order: of each run of neighbours the lowest and the highest.

    First and last stay, and one gap (None) of each run, so a hole in the data stays a hole in the picture.
    """
    if len(values) <= most:
        return list(range(len(values)))
    size = neighbours(len(values), most)
    kept = {0, len(values) - 1}
    for begin in range(0, len(values), size):
        kept.update(_extremes(values, range(begin, min(begin + size, len(values)))))
    return sorted(kept)


def neighbours(num_values: int, most: int) -> int:
    """Return how many neighbouring values share one pair of points when `num_values` are thinned to `most`."""
    return max(1, -(-2 * num_values // most))


def _extremes(values: Sequence[float | None], indices: range) -> set[int]:
    known = [(value, index) for index in indices if (value := values[index]) is not None]
    kept = {min(known)[1], max(known)[1]} if known else set()
    gap = next((index for index in indices if values[index] is None), None)
    return kept if gap is None else kept | {gap}


def _drawn(value: float, digits: int = 6) -> float:
    """Round to what a screen can show, to keep the page small; NaN stays NaN and is refused later."""
    return float(f"{value:.{digits}g}")


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One bar; its figure is known."""

    name: str
    figure: Figure
    color: str


def interval_bars(*, title: str, bars: Sequence[Bar], x_title: str, how_to_read: str) -> Chart:
    """Return bars of figures of one unit, in this order from the top; there is at least one."""
    largest = max(abs(bar.figure.high or bar.figure.value or 0.0) for bar in bars)
    scale, unit = axis_scale(bars[0].figure.unit, largest)
    trace = bar_trace(
        name="",
        color=[bar.color for bar in bars],
        x=[(bar.figure.value or 0.0) / scale for bar in bars],
        words=[f"{bar.name}: {with_interval(bar.figure)}" for bar in bars],
    )
    layout = bar_layout(f"{unit} {x_title}", [f"{bar.name}  {figure_text(bar.figure)}" for bar in bars])
    return Chart(
        title=title,
        traces=(trace | whiskers([bar.figure for bar in bars], scale),),
        layout={**layout, "showlegend": False, "bargap": 0.35},
        height=height(28 * len(bars), num_names=0),
        how_to_read=how_to_read,
        alternative=" ".join(f"{bar.name}: {with_interval(bar.figure)}." for bar in bars),
    )


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
    layout = bar_layout(f"% of {whole}", [clipped(row.name, LONGEST_ROW_NAME) for row in drawn])
    if is_full:
        layout["xaxis"]["range"] = [0, 100]
    left_out = f" Drawn: the first {len(drawn)} of {units.whole(len(rows))}." if len(drawn) < len(rows) else ""
    return Chart(
        title=title,
        traces=tuple(_part_bar(part, drawn) for part in parts),
        layout={**layout, "barmode": "stack", "bargap": 0.35},
        height=height(28 * len(drawn), num_names=len(parts)),
        how_to_read=how_to_read + left_out,
        alternative=" ".join(_row_words(row, parts) for row in drawn),
    )


def _part_bar(part: Part, rows: Sequence[StackedBar]) -> dict[str, Any]:
    ratios = [row.ratios.get(part.key, 0.0) for row in rows]
    return stacked_part(
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


def _row_words(row: StackedBar, parts: Sequence[Part]) -> str:
    shown = [f"{part.name} {units.share(ratio)}" for part in parts if (ratio := row.ratios.get(part.key))]
    return f"{row.name}: {', '.join(shown) or 'nothing'}."
