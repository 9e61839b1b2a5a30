"""Sampler readings as curves: one panel per kind of source and unit, whatever the samplers call their values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dpdoctor.analysis import Sample

NS = 1e-9
# They only grow: what they gained is told, not drawn. Reasons of lowered clocks are bits.
COUNTERS = frozenset({"energy_j", "throttled_s", "num_throttled", "num_quota_periods", "pressure_cpu_s"})
THROTTLE_REASONS = "throttle_reasons"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One value of one source over time. `y` is in the panel's unit; None where a reading lacks it."""

    source: str
    key: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        """Return the readings without the gaps."""
        return [value for value in self.y if value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
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
            y = tuple(sample.values.get(key) for sample in readings)
            groups.setdefault((kind_of(source), unit_of(key)), []).append(Curve(source=source, key=key, x=x, y=y))
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
