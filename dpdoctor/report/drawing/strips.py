"""Readings of samplers as strips above each other that share one time axis, whatever the samplers call their values.

More sources than one picture can show become their lowest, middle and highest reading at each moment. One strip says
why GPUs ran below their clocks: a row per reason, a mark for each reading that names it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import msgspec
from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import Sample
from dpdoctor.analysis.machine import FAULTS
from dpdoctor.report.blocks import Chart
from dpdoctor.report.drawing import charts
from dpdoctor.report.drawing.charts import thin
from dpdoctor.report.text import amount, clipped, listed

NS = 1e-9
# They only grow: what they gained is told, not drawn. Reasons of lowered clocks are bits.
COUNTERS = frozenset({"energy_j", "throttled_s", "num_throttled", "num_quota_periods", "pressure_cpu_s"})
THROTTLE_REASONS = "throttle_reasons"
# After so many readings that are missing the source was not there: workers that ended, say.
MOST_MISSED = 3
# Without them a time and a number of one thing would have one name.
_COUNTS = {"num_throttled": "throttled periods"}

# suffix of a value's name -> its unit; the first that fits
_SUFFIXES = (
    ("_gb_s", "GB/s"),
    ("_ratio", "ratio"),
    ("_cores", "cores"),
    ("_bytes", "bytes"),
    ("_mhz", "MHz"),
    ("_ns", "ns"),
    ("_s", "s"),
    ("_w", "W"),
    ("_j", "J"),
    ("_c", "°C"),
)


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """One value of one source over time. `y` is in the panel's unit; None where a reading lacks it."""

    source: str
    key: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        """Return the readings without the gaps."""
        return [value for value in self.y if value is not None]


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """All curves that share an axis: one kind of source (host, rank, gpu, ...) and one unit."""

    kind: str
    unit: str
    curves: tuple[Curve, ...]


def unit_of(key: str) -> str:
    """Return the unit that a value's name ends in; empty when it names none."""
    return next((unit for suffix, unit in _SUFFIXES if key.endswith(suffix)), "")


def words_of(key: str) -> str:
    """Return a value's name in words, without its unit: `kernel_running_ratio` is `kernel running`."""
    if key in _COUNTS:
        return _COUNTS[key]
    suffix = next((suffix for suffix, _ in _SUFFIXES if key.endswith(suffix)), "")
    return key.removesuffix(suffix).removeprefix("num_").replace("_", " ")


def kind_of(source: str) -> str:
    """Return the kind of a source: `rank` for rank0, rank1 and rank1.workers, `gpu` for gpu3."""
    found = re.match(r"[A-Za-z_]+", source)
    return found[0] if found else source


def panels(samples: Sequence[Sample], origin_ns: int) -> tuple[Panel, ...]:
    """Return the readings of levels as panels, in the order in which they first appear; seconds since `origin_ns`.

    Counters and reasons of lowered clocks are left out.
    """
    groups: dict[tuple[str, str], list[Curve]] = {}
    for source, readings in _by_source(samples).items():
        x = tuple((sample.at_ns - origin_ns) * NS for sample in readings)
        for key in dict.fromkeys(key for sample in readings for key in sample.values):
            if key in COUNTERS or key == THROTTLE_REASONS:
                continue
            y = [sample.values.get(key) for sample in readings]
            whole, known = charts.with_holes(x, x, y, MOST_MISSED * _period(x))
            curve = Curve(source=source, key=key, x=tuple(whole), y=tuple(known))
            groups.setdefault((kind_of(source), unit_of(key)), []).append(curve)
    return tuple(Panel(kind=kind, unit=unit, curves=tuple(curves)) for (kind, unit), curves in groups.items())


def gained(samples: Sequence[Sample]) -> dict[tuple[str, str], tuple[float, int]]:
    """Return by kind of source and counter what it gained from first to last reading, over how many sources."""
    ends: dict[tuple[str, str], tuple[float, float]] = {}
    for sample in samples:
        for key in COUNTERS & sample.values.keys():
            first, _ = ends.get((sample.source, key), (sample.values[key], 0.0))
            ends[sample.source, key] = first, sample.values[key]
    found: dict[tuple[str, str], tuple[float, int]] = {}
    for (source, key), (first, last) in ends.items():
        total, number = found.get((kind_of(source), key), (0.0, 0))
        found[kind_of(source), key] = total + last - first, number + 1
    return dict(sorted(found.items()))


def unknowns(samples: Sequence[Sample]) -> tuple[tuple[str, str, str], ...]:
    """Return each (source, value, reason) that could not be read at least once, without repeats."""
    found = ((sample.source, key, reason) for sample in samples for key, reason in sample.unknown.items())
    return tuple(dict.fromkeys(found))


def _by_source(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.source, []).append(sample)
    return found


# Fewer sources of one reading are drawn as they are.
LEAST_SOURCES = 4
_NOUNS = {"gpu": "GPU"}
LEVELS = (("lowest", min), ("middle", median), ("highest", max))


def grouped(panel: Panel) -> tuple[Panel, str]:
    """Return a panel of at most charts.MOST_SERIES curves, and in sentences what was done for that; empty: nothing."""
    if len(panel.curves) <= charts.MOST_SERIES:
        return panel, ""
    curves: list[Curve] = []
    words: list[str] = []
    noun = _NOUNS.get(panel.kind, panel.kind)
    for (part, key), same in _by_reading(panel).items():
        if len(same) < LEAST_SOURCES:
            curves += same
            continue
        of = units.count(len(same), noun) + (f" ({part})" if part else "")
        curves += _levels(same, of, key)
        words.append(f"Of {of}, {words_of(key)}: {_extremes(same, panel.unit)}.")
    drawn = sorted(curves, key=lambda curve: max(curve.known, default=0.0), reverse=True)[: charts.MOST_SERIES]
    if len(drawn) < len(curves):
        words.append(f"Drawn: the {len(drawn)} that reach highest, of {len(curves)}.")
    return replace(panel, curves=tuple(drawn)), " ".join(words)


def _by_reading(panel: Panel) -> dict[tuple[str, str], list[Curve]]:
    """Return the curves of one reading together, those of ranks apart from those of their workers."""
    found: dict[tuple[str, str], list[Curve]] = {}
    for curve in panel.curves:
        found.setdefault((curve.source.partition(".")[2], curve.key), []).append(curve)
    return found


def _levels(curves: Sequence[Curve], of: str, key: str) -> list[Curve]:
    """Return the extremes and the middle of each round of readings; sources are read one shortly after the other."""
    rounds: dict[int, list[tuple[float, float]]] = {}
    period = _period(curves[0].x)
    for curve in curves:
        for at, value in zip(curve.x, curve.y, strict=True):
            if value is not None:
                rounds.setdefault(round(at / period), []).append((at, value))
    found = [rounds[number] for number in sorted(rounds)]
    x = tuple(fmean(at for at, _ in readings) for readings in found)
    return [
        Curve(
            source=f"{level} of {of}", key=key, x=x, y=tuple(pick(value for _, value in readings) for readings in found)
        )
        for level, pick in LEVELS
    ]


def _period(x: Sequence[float]) -> float:
    return median(after - before for before, after in pairwise(x)) if len(x) > 1 else 1.0


def _extremes(curves: Sequence[Curve], unit: str) -> str:
    """Return which source has the lowest and which the highest mean."""
    means = sorted((fmean(curve.known), curve.source) for curve in curves if curve.known)
    (least, low), (most, high) = means[0], means[-1]
    return f"the lowest mean is that of {low}, {amount(least, unit)}; the highest that of {high}, {amount(most, unit)}"


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


THROTTLE_TITLE = "GPU: reasons for lowered clocks"
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
    traces = tuple(_reason_marks(bit, named[bit], origin_ns) for bit in rows)
    axis = {
        "type": "category",
        "fixedrange": True,
        "categoryorder": "array",
        "autorange": "reversed",
        "categoryarray": [_reason(bit) for bit in rows],
    }
    keys = ((charts.VERMILION, "something is wrong"), (charts.GREY, "usual or wanted"))
    strip = Strip(title=THROTTLE_TITLE, traces=traces, keys=keys, axis=axis)
    return strip, " ".join(f"{_reason_words(bit, named[bit], len(known))}." for bit in rows)


def _reason_marks(bit: int, named: Sequence[Sample], origin_ns: int) -> dict[str, Any]:
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


def _reason_words(bit: int, named: Sequence[Sample], num_readings: int) -> str:
    sources = sorted({sample.source for sample in named})
    who = listed(sources) if len(sources) <= MOST_NAMED else units.count(len(sources), "GPU")
    return f"{_reason(bit)}: {units.share(len(named) / num_readings)} of the readings, on {who}"
