"""Strips of curves above each other that share one time axis, so that what happened at one moment stands below it.

One of them says why GPUs ran below their clocks: a row per reason, a mark for each reading that names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dpdoctor import units
from dpdoctor.analysis import Sample
from dpdoctor.analysis.disturbances import FAULTS
from dpdoctor.report.blocks import Chart
from dpdoctor.report.drawing import charts
from dpdoctor.report.drawing.charts import thin
from dpdoctor.report.drawing.series import THROTTLE_REASONS
from dpdoctor.report.text import clipped, listed

STRIP_PX, LINE_PX = 34, 16
# A telephone shows as many characters beside each other.
LINE_CHARACTERS = 44
FONT_PX = 11


class Strip(msgspec.Struct, frozen=True, kw_only=True):
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
        "margin": {"t": charts.HEAD_PX},
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
        height=charts.height(total, num_names=0),
        how_to_read=how_to_read,
        alternative=alternative,
    )


def _axis_name(prefix: str, place: int) -> str:
    return prefix if place == 1 else f"{prefix}{place}"


def _head(strip: Strip) -> list[str]:
    """Return the lines above a strip: its title, then the names of its curves, each with a dash in its colour."""
    title = clipped(strip.title, LINE_CHARACTERS)
    lines, used = [f"<b>{charts.plain(title)}</b>"], len(title) + 5
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


NS = 1e-9
TITLE = "GPU: reasons for lowered clocks"
# Bits of NVML's clocks event reasons that are usual or wanted, as nvml.h names them.
_USUAL = {
    0x001: "idle",
    0x002: "clocks set by the user",
    0x004: "power cap",
    0x010: "sync boost",
    0x100: "clocks of the display",
}
REASONS = {**FAULTS, **_USUAL}
# More sources are counted, not named.
MOST_NAMED = 4
MOST_MARKS = 200


def throttle_strip(samples: Sequence[Sample], origin_ns: int) -> tuple[Strip | None, str]:
    """Return the strip and the same in words; (None, "") where no driver tells, (None, that) where none was named."""
    known = [sample for sample in samples if THROTTLE_REASONS in sample.values]
    if not known:
        return None, ""
    named = {bit: found for bit in _bits(known) if (found := [sample for sample in known if _bits_of(sample) & bit])}
    if not named:
        return None, f"None of {units.count(len(known), 'reading')} names a reason for lowered clocks."
    rows = sorted(named, key=lambda bit: (bit not in FAULTS, bit))
    traces = tuple(_marks(bit, named[bit], origin_ns) for bit in rows)
    axis = {"type": "category", "fixedrange": True, "categoryorder": "array", "autorange": "reversed"}
    keys = ((charts.VERMILION, "something is wrong"), (charts.GREY, "usual or wanted"))
    strip = Strip(title=TITLE, traces=traces, keys=keys, axis={**axis, "categoryarray": [_reason(bit) for bit in rows]})
    return strip, " ".join(f"{_words(bit, named[bit], len(known))}." for bit in rows)


def _marks(bit: int, named: Sequence[Sample], origin_ns: int) -> dict[str, Any]:
    shown = [named[i] for i in thin([float(sample.at_ns) for sample in named], MOST_MARKS)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": _reason(bit),
        "x": [round((sample.at_ns - origin_ns) * NS, 3) for sample in shown],
        "y": [_reason(bit)] * len(shown),
        "text": [charts.plain(f"{sample.source}: {_reason(bit)}") for sample in shown],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"symbol": "square", "size": 7, "color": charts.VERMILION if bit in FAULTS else charts.GREY},
    }


def _bits_of(sample: Sample) -> int:
    return int(sample.values[THROTTLE_REASONS])


def _bits(samples: Sequence[Sample]) -> list[int]:
    """Return every bit that any reading has, one known to nvml.h or not."""
    every = 0
    for sample in samples:
        every |= _bits_of(sample)
    return [1 << place for place in range(every.bit_length()) if every >> place & 1]


def _reason(bit: int) -> str:
    return REASONS.get(bit, f"another reason (bit {bit.bit_length() - 1})")


def _words(bit: int, named: Sequence[Sample], num_readings: int) -> str:
    sources = sorted({sample.source for sample in named})
    who = listed(sources) if len(sources) <= MOST_NAMED else units.count(len(sources), "GPU")
    return f"{_reason(bit)}: {units.share(len(named) / num_readings)} of the readings, on {who}"
