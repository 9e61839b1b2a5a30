"""Throughput of every mode as bars: intervals as whiskers, linear scaling as a mark, its share in the labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpdoctor import units
from dpdoctor.analysis import Figure, ModeSummary
from dpdoctor.report.blocks import Chart
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import figure_text, interval_text, mode_label, with_interval
from dpdoctor.report.words import clauses, standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One throughput of a mode, and how its bars look; `ink` is for text on them."""

    name: str
    pick: Callable[[ModeSummary], Figure]
    color: str
    ink: str


STEADY = Kind(name="steady", pick=lambda mode: mode.throughput, color=charts.BLUE, ink=charts.LIGHT_INK)
WITH_EDGES = Kind(
    name="with epoch edges", pick=lambda mode: mode.throughput_with_edges, color=charts.SKY, ink=charts.DARK_INK
)


def throughput_bars(modes: Mapping[str, ModeSummary], kinds: Sequence[Kind]) -> Chart:
    """Return a bar of each kind for each mode, in this order from the top; the throughput of every mode is known."""
    traces = [_bars(modes, kind) for kind in kinds]
    baseline = next((mode.throughput.value for name, mode in modes.items() if standing.is_baseline(name)), None)
    parallel = {name: mode for name, mode in modes.items() if mode.num_devices > 1 and not standing.is_baseline(name)}
    how_to_read = "Longer is better. Whisker: 95 % interval."
    if baseline is not None and parallel:
        traces.append(_linear(parallel, baseline))
        how_to_read += " Diamond: one device times the number of devices."
    return Chart(
        title="Samples per second, by mode",
        traces=tuple(traces),
        layout=_layout(modes, has_legend=len(traces) > 1),
        height=110 + (26 + 24 * len(kinds)) * len(modes),
        how_to_read=how_to_read,
        alternative=" ".join(_words(name, mode, kinds) for name, mode in modes.items()),
    )


def _layout(modes: Mapping[str, ModeSummary], *, has_legend: bool) -> dict[str, Any]:
    layout = charts.bar_layout("samples per second")
    layout["yaxis"] |= {
        "tickmode": "array",
        "tickvals": [_row(name) for name in modes],
        "ticktext": [_label(name, mode) for name, mode in modes.items()],
    }
    return {**layout, "barmode": "group", "bargap": 0.35, "showlegend": has_legend}


def _row(name: str) -> str:
    return charts.plain(mode_label(name))


def _label(name: str, mode: ModeSummary) -> str:
    below = charts.plain(", ".join(_against_one(name, mode)))
    return f"{_row(name)}<br>{below}" if below else _row(name)


def _against_one(name: str, mode: ModeSummary) -> list[str]:
    """Return how a mode stands to one device: its speedup, and its share of linear where the word says something."""
    if mode.status == "inactive":
        return ["changed nothing"]
    if standing.is_baseline(name) or mode.speedup.value is None:
        return []
    linear = clauses.linear(mode)
    share = [f"{figure_text(linear)} of linear"] if linear is not None and linear.value is not None else []
    return [figure_text(mode.speedup), *share]


def _bars(modes: Mapping[str, ModeSummary], kind: Kind) -> dict[str, Any]:
    figures = {name: kind.pick(mode) for name, mode in modes.items()}
    return charts.whiskers([*figures.values()], 1) | {
        "type": "bar",
        "orientation": "h",
        "name": kind.name,
        "y": [_row(name) for name in figures],
        "x": [figure.value for figure in figures.values()],
        "text": ["" if figure.value is None else units.digits(figure.value) for figure in figures.values()],
        "textposition": "inside",
        "insidetextanchor": "start",
        "insidetextfont": {"color": kind.ink},
        "textangle": 0,
        "hovertext": [
            f"{kind.name}: {figure_text(figure)} ({interval_text(figure) or 'no interval'})"
            for figure in figures.values()
        ],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": kind.color},
    }


def _linear(modes: Mapping[str, ModeSummary], baseline: float) -> dict[str, Any]:
    ideal = {name: baseline * mode.num_devices for name, mode in modes.items()}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "linear scaling",
        "y": [_row(name) for name in ideal],
        "x": list(ideal.values()),
        "hovertext": [f"linear scaling: {units.rate(value)}" for value in ideal.values()],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"symbol": "diamond-open", "size": 11, "color": charts.VERMILION, "line": {"width": 2}},
    }


def _words(name: str, mode: ModeSummary, kinds: Sequence[Kind]) -> str:
    figures = [f"{with_interval(kind.pick(mode))} {kind.name}" for kind in kinds]
    return f"{mode_label(name)}: {', '.join((*figures, *_against_one(name, mode)))}."
