"""The loader as charts: how long a fetch takes in each process, and the step that is predicted for other settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from dpdoctor import units
from dpdoctor.analysis import LoaderPrediction, LoaderSummary
from dpdoctor.analysis.loader.trial import setting_words
from dpdoctor.report.blocks import Chart
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import figure_text, with_interval

# More boxes in one picture cannot be read.
MOST_BOXES = 32
# Of each box so many of its longest fetches are drawn one by one.
MOST_POINTS = 5
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """The fetches of one process, or of all processes of one rank, in seconds: QUANTILES, and the longest beyond."""

    name: str
    num: int
    quantiles: tuple[float, ...]
    longest: tuple[float, ...]

    @property
    def median(self) -> float:
        """Return the middle one."""
        return self.quantiles[2]


def fetch_boxes(fetches: Mapping[tuple[int, int | None], Sequence[float]]) -> Chart:
    """Return a box per loader process or, of many, per rank, from the seconds of the fetches by rank and worker.

    Worker None is the training thread; there is at least one fetch.
    """
    found, left_out = _boxes(fetches)
    scale, unit = units.time_scale(max(max(box.quantiles[-1], *box.longest, 0.0) for box in found))
    layout = charts.bar_layout(f"{unit} per fetch", [box.name for box in found])
    return Chart(
        title="How long a fetch takes",
        traces=(_box_trace(found, scale), _middles(found, scale), *_longest(found, scale)),
        layout={**layout, "showlegend": False},
        height=charts.height(26 * len(found), num_names=0),
        how_to_read="Box: the middle half of the fetches, with the median. Whiskers: 5% to 95%. Rings: the longest."
        + left_out,
        alternative=" ".join(f"{_box_words(box)}." for box in found),
    )


def _boxes(by_process: Mapping[tuple[int, int | None], Sequence[float]]) -> tuple[list[Box], str]:
    """Return the boxes to draw, and in a sentence what was put together or left out for them."""
    if len(by_process) <= MOST_BOXES:
        return [_box(_process_name(*process), by_process[process]) for process in sorted(by_process, key=_place)], ""
    by_rank: dict[int, list[float]] = {}
    for (rank, _), fetches in by_process.items():
        by_rank.setdefault(rank, []).extend(fetches)
    boxes = [_box(f"rank {rank}", fetches) for rank, fetches in sorted(by_rank.items())]
    together = (
        f" {units.whole(len(by_process))} processes are put together by rank." if len(by_rank) < len(by_process) else ""
    )
    if len(boxes) <= MOST_BOXES:
        return boxes, together
    every = _box("all ranks", [seconds for fetches in by_process.values() for seconds in fetches])
    slowest = sorted(boxes, key=lambda box: box.median, reverse=True)[:MOST_BOXES]
    drawn = f"Drawn: all together, and the {MOST_BOXES} with the longest median, of {units.count(len(boxes), 'rank')}."
    return [every, *slowest], f"{together} {drawn}"


def _place(process: tuple[int, int | None]) -> tuple[int, int]:
    rank, worker = process
    return rank, -1 if worker is None else worker


def _process_name(rank: int, worker: int | None) -> str:
    return f"rank {rank}, training thread" if worker is None else f"rank {rank}, worker {worker}"


def _box(name: str, fetches: Sequence[float]) -> Box:
    quantiles = tuple(float(value) for value in np.quantile(fetches, QUANTILES))
    beyond = sorted((value for value in fetches if value > quantiles[-1]), reverse=True)
    return Box(name=name, num=len(fetches), quantiles=quantiles, longest=tuple(beyond[:MOST_POINTS]))


def _box_trace(found: Sequence[Box], scale: float) -> dict[str, Any]:
    low, q1, median, q3, high = ([_round(box.quantiles[i] / scale) for box in found] for i in range(len(QUANTILES)))
    return {
        "type": "box",
        "orientation": "h",
        "name": "",
        "y": [*range(len(found))],
        "lowerfence": low,
        "q1": q1,
        "median": median,
        "q3": q3,
        "upperfence": high,
        "hoverinfo": "skip",
        "line": {"color": charts.BLUE, "width": 1.5},
    }


def _middles(found: Sequence[Box], scale: float) -> dict[str, Any]:
    """Return the medians as points, which show the words of their box on hovering: a box shows bare numbers."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "",
        "x": [_round(box.median / scale) for box in found],
        "y": [*range(len(found))],
        "text": [_box_words(box) for box in found],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": charts.BLUE, "size": 7, "symbol": "diamond"},
    }


def _longest(found: Sequence[Box], scale: float) -> list[dict[str, Any]]:
    points = [(place, box, value) for place, box in enumerate(found) for value in box.longest]
    if not points:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "",
            "x": [_round(value / scale) for _, _, value in points],
            "y": [place for place, _, _ in points],
            "text": [f"{box.name}: {units.seconds(value)}" for _, box, value in points],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"color": charts.VERMILION, "size": 7, "symbol": "circle-open"},
        }
    ]


def _box_words(box: Box) -> str:
    low, q1, median, q3, high = (units.seconds(value) for value in box.quantiles)
    longest = f", longest {units.seconds(box.longest[0])}" if box.longest else ""
    return (
        f"{box.name}: median {median} of {units.whole(box.num)}, half of them from {q1} to {q3}, nine in ten from "
        f"{low} to {high}{longest}"
    )


def _round(value: float) -> float:
    return float(f"{value:.6g}")


def predicted_step(loader: LoaderSummary) -> Chart:
    """Return the step over the number of workers, a line per prefetch factor; there is at least one prediction."""
    known = [found for found in loader.predictions if found.step.value is not None]
    scale, unit = units.time_scale(max(found.step.value or 0.0 for found in known))
    lines = _by_prefetch(known)
    drawn = list(lines.items())[: charts.MOST_SERIES]
    return Chart(
        title="Predicted step by number of workers",
        traces=(
            *(
                _line(factor, found, scale, color)
                for (factor, found), color in zip(drawn, charts.SERIES_COLORS, strict=False)
            ),
            *_marks(loader, scale),
        ),
        layout={
            "xaxis": {"title": {"text": "num_workers of each rank"}, "dtick": 1, "automargin": True},
            "yaxis": {"title": {"text": f"{unit} per step"}, "rangemode": "tozero", "automargin": True},
            "hovermode": "closest",
            "showlegend": True,
        },
        height=charts.height(200),
        how_to_read="Lower is faster. Whisker: 95% interval. Star: the setting to choose; ring: the script's own.",
        alternative=" ".join(f"{setting_words(found)}: {with_interval(found.step)}." for found in known),
    )


def _by_prefetch(known: Sequence[LoaderPrediction]) -> dict[int | None, list[LoaderPrediction]]:
    """Return the predictions by prefetch factor; without workers there is none, and every line begins there."""
    without = [found for found in known if found.prefetch_factor is None]
    factors = sorted({found.prefetch_factor for found in known if found.prefetch_factor is not None})
    if not factors:
        return {None: without}
    return {
        factor: sorted(
            [*without, *(found for found in known if found.prefetch_factor == factor)],
            key=lambda found: found.num_workers,
        )
        for factor in factors
    }


def _line(factor: int | None, found: Sequence[LoaderPrediction], scale: float, color: str) -> dict[str, Any]:
    values = [one.step.value or 0.0 for one in found]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "no workers" if factor is None else f"prefetch_factor={factor}",
        "x": [one.num_workers for one in found],
        "y": [value / scale for value in values],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [charts.whisker(one.step.value, one.step.high, scale) for one in found],
            "arrayminus": [charts.whisker(one.step.low, one.step.value, scale) for one in found],
            "thickness": 1,
            "width": 3,
        },
        "hovertext": [f"{setting_words(one)}: {with_interval(one.step)}" for one in found],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "line": {"color": color, "width": 1.5},
    }


def _marks(loader: LoaderSummary, scale: float) -> list[dict[str, Any]]:
    own = next((found for found in loader.predictions if _is_own(found, loader)), None)
    return [
        _mark(name, found, symbol, scale)
        for name, found, symbol in (("the script's own", own, "circle-open"), ("advice", loader.advice, "star"))
        if found is not None and found.step.value is not None
    ]


def _is_own(found: LoaderPrediction, loader: LoaderSummary) -> bool:
    factor = loader.prefetch_factor if loader.num_workers else None
    return (found.num_workers, found.prefetch_factor) == (loader.num_workers, factor)


def _mark(name: str, found: LoaderPrediction, symbol: str, scale: float) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [found.num_workers],
        "y": [(found.step.value or 0.0) / scale],
        "hovertext": [f"{name}: {setting_words(found)}, {figure_text(found.step)}"],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"symbol": symbol, "size": 16, "color": charts.VERMILION, "line": {"width": 2}},
    }
