"""The predicted step for every number of workers, with the script's own setting, the advice and the control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpdoctor import units
from dpdoctor.analysis import LoaderPrediction, LoaderSummary
from dpdoctor.analysis.loader.trial import setting_words
from dpdoctor.report.blocks import Chart
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import figure_text, with_interval


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
