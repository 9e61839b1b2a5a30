"""Sampler readings as curves: one panel per kind of source and unit, whatever the samplers call their values.

More sources than one picture can show become their lowest, middle and highest reading at each moment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

import msgspec
from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import Sample
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import amount

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
