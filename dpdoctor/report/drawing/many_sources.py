"""Readings of more sources than one picture can show: their lowest, middle and highest reading at each moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

from dpdoctor import units
from dpdoctor.report.drawing import charts
from dpdoctor.report.drawing.series import Curve, Panel, words_of
from dpdoctor.report.text import amount

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
    return dataclasses.replace(panel, curves=tuple(drawn)), " ".join(words)


def _by_reading(panel: Panel) -> dict[tuple[str, str], list[Curve]]:
    """Return the curves of one reading together, those of ranks apart from those of their workers."""
    found: dict[tuple[str, str], list[Curve]] = {}
    for curve in panel.curves:
        found.setdefault((curve.source.partition(".")[2], curve.key), []).append(curve)
    return found


def _levels(curves: Sequence[Curve], of: str, key: str) -> list[Curve]:
    """Return the extremes and the middle of each round of readings; sources are read one shortly after the other."""
    rounds: dict[int, list[tuple[float, float]]] = {}
    period = _period(curves[0])
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


def _period(curve: Curve) -> float:
    return median(after - before for before, after in pairwise(curve.x)) if len(curve.x) > 1 else 1.0


def _extremes(curves: Sequence[Curve], unit: str) -> str:
    """Return which source has the lowest and which the highest mean."""
    means = sorted((fmean(curve.known), curve.source) for curve in curves if curve.known)
    (least, low), (most, high) = means[0], means[-1]
    return f"the lowest mean is that of {low}, {amount(least, unit)}; the highest that of {high}, {amount(most, unit)}"
