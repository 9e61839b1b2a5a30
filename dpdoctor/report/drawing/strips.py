"""Strips of curves above each other that share one time axis, so that what happened at one moment stands below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpdoctor.report.blocks import Chart
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import clipped

STRIP_PX, LINE_PX, AXIS_PX = 92, 17, 64
# A telephone shows as many characters beside each other.
LINE_CHARACTERS = 44
FONT_PX = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """One strip: its name, its curves with (colour, name) of each, and what its y axis has besides."""

    title: str
    traces: tuple[dict[str, Any], ...]
    keys: tuple[tuple[str, str], ...]
    axis: dict[str, Any]


def strip_chart(
    *, title: str, strips: Sequence[Strip], shapes: Sequence[dict[str, Any]], how_to_read: str, alternative: str
) -> Chart:
    """Return the strips, the first on top; `shapes` reach over all of them. There is at least one strip.

    Names stand above each strip in lines of fixed height: a legend would lie on the strip above where it is wrapped.
    """
    heads = [_head(strip) for strip in strips]
    heights = [LINE_PX * len(lines) + STRIP_PX for lines in heads]
    total = sum(heights)
    layout: dict[str, Any] = {
        "xaxis": {
            "title": {"text": "time since launch (s)"},
            "rangemode": "nonnegative",
            "automargin": True,
            "anchor": _axis_name("y", len(strips)),
            "showspikes": True,
            "spikemode": "across",
            "spikethickness": 1,
            "spikedash": "dot",
        },
        "hovermode": "closest",
        "showlegend": False,
        "shapes": list(shapes),
        "annotations": [],
    }
    top = total
    for place, (strip, lines, height) in enumerate(zip(strips, heads, heights, strict=True), 1):
        ends = ((top - height) / total, (top - LINE_PX * len(lines)) / total)
        domain = [round(end, 5) for end in ends]
        layout[_axis_name("yaxis", place)] = {"rangemode": "tozero", "automargin": True, **strip.axis, "domain": domain}
        layout["annotations"].append(_names("<br>".join(lines), domain[1]))
        top -= height
    return Chart(
        title=title,
        traces=tuple(
            {**trace, "yaxis": _axis_name("y", place)}
            for place, strip in enumerate(strips, 1)
            for trace in strip.traces
        ),
        layout=layout,
        height=total + AXIS_PX,
        how_to_read=how_to_read,
        alternative=alternative,
    )


def _axis_name(prefix: str, place: int) -> str:
    return prefix if place == 1 else f"{prefix}{place}"


def _head(strip: Strip) -> list[str]:
    """Return the lines above a strip: its title, then the names of its curves, each with a dash in its colour."""
    lines, used = [f"<b>{charts.plain(clipped(strip.title, LINE_CHARACTERS))}</b>"], LINE_CHARACTERS
    for color, whole in strip.keys:
        name = clipped(whole, LINE_CHARACTERS)
        entry = f'<span style="color:{color}">━</span> {charts.plain(name)}'
        if used + len(name) > LINE_CHARACTERS:
            lines.append(entry)
            used = len(name)
        else:
            lines[-1] += f"   {entry}"
            used += len(name) + 5
    return lines


def _names(text: str, top: float) -> dict[str, Any]:
    return {
        "text": text,
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": top,
        "xanchor": "left",
        "yanchor": "bottom",
        "align": "left",
        "showarrow": False,
        "font": {"size": FONT_PX},
    }
