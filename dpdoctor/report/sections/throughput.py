"""How many samples per second each mode gives, and what measuring them cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dpdoctor import units
from dpdoctor.analysis import Analysis, Figure, ModeSummary
from dpdoctor.report import charts, standing
from dpdoctor.report.blocks import Absent, Block, Cell, Chart, Column, Paragraph, Section, Table
from dpdoctor.report.text import absent, figure_cell, figure_text, interval_text, interval_words, mode_label
from dpdoctor.report.traces.traced import is_profile

KINDS: tuple[tuple[str, Callable[[ModeSummary], Figure], str, str], ...] = (
    ("steady", lambda mode: mode.throughput, charts.BLUE, charts.LIGHT_INK),
    ("with epoch edges", lambda mode: mode.throughput_with_edges, charts.SKY, charts.DARK_INK),
)


def build(analysis: Analysis) -> Sequence[Block]:
    """Return bars with intervals, the same as a table, and the cost of measuring."""
    shown = standing.shown_modes(analysis.summary)
    measured = {name: mode for name, mode in shown.items() if mode.throughput.value is not None}
    withheld = absent(_reasons(analysis, measured))
    if not measured:
        return withheld or [Absent(what="Throughput", reason="this run has no modes")]
    return [
        _chart(measured),
        *withheld,
        Paragraph(
            text="Steady leaves out steps in which an epoch began or an evaluation ran; the other bar has them. "
            "Both count samples of all devices together."
        ),
        _table(measured),
        _costs(measured),
    ]


def _reasons(analysis: Analysis, measured: dict[str, ModeSummary]) -> list[tuple[str, str]]:
    return [
        (mode_label(name), standing.withheld_briefly(mode) or mode.throughput.reason or "nothing was measured")
        for name, mode in analysis.summary.modes.items()
        if name not in measured
    ]


def _chart(modes: dict[str, ModeSummary]) -> Chart:
    traces = [_bars(modes, label, pick, color, ink) for label, pick, color, ink in KINDS]
    baseline = next((mode.throughput.value for name, mode in modes.items() if standing.is_baseline(name)), None)
    parallel = {name: mode for name, mode in modes.items() if mode.num_devices > 1 and not standing.is_baseline(name)}
    if baseline is not None and parallel:
        traces.append(_linear(parallel, baseline))
    return Chart(
        title="Samples per second, by mode",
        traces=tuple(traces),
        layout={**charts.bar_layout("samples per second, all devices"), "barmode": "group", "bargap": 0.35},
        height=110 + 74 * len(modes),
        how_to_read="Longer is better. Whisker: 95 % interval. Diamond: one device times the number of devices.",
        alternative=" ".join(_words(name, mode) for name, mode in modes.items()),
    )


def _bars(
    modes: dict[str, ModeSummary], label: str, pick: Callable[[ModeSummary], Figure], color: str, ink: str
) -> dict[str, Any]:
    figures = {name: pick(mode) for name, mode in modes.items()}
    return {
        "type": "bar",
        "orientation": "h",
        "name": label,
        "y": [charts.plain(mode_label(name)) for name in figures],
        "x": [figure.value for figure in figures.values()],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [_arm(figure.value, figure.high) for figure in figures.values()],
            "arrayminus": [_arm(figure.low, figure.value) for figure in figures.values()],
            "thickness": 1.5,
            "width": 4,
        },
        "text": ["" if figure.value is None else units.digits(figure.value) for figure in figures.values()],
        "textposition": "inside",
        "insidetextanchor": "start",
        "insidetextfont": {"color": ink},
        "textangle": 0,
        "hovertext": [
            f"{label}: {figure_text(figure)} ({interval_text(figure) or 'no interval'})" for figure in figures.values()
        ],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": color},
    }


def _arm(low: float | None, high: float | None) -> float | None:
    return None if low is None or high is None else high - low


def _linear(modes: dict[str, ModeSummary], baseline: float) -> dict[str, Any]:
    ideal = {name: baseline * mode.num_devices for name, mode in modes.items()}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "linear scaling",
        "y": [charts.plain(mode_label(name)) for name in ideal],
        "x": list(ideal.values()),
        "hovertext": [f"linear scaling: {units.rate(value)}" for value in ideal.values()],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"symbol": "diamond-open", "size": 11, "color": charts.VERMILION, "line": {"width": 2}},
    }


def _words(name: str, mode: ModeSummary) -> str:
    interval = interval_text(mode.throughput)
    spread = f" ({interval})" if interval else ""
    edges = figure_text(mode.throughput_with_edges)
    return f"{mode_label(name)}: {figure_text(mode.throughput)}{spread} steady, {edges} with epoch edges."


def _table(modes: dict[str, ModeSummary]) -> Table:
    return Table(
        caption=f"Throughput. {interval_words(modes)}",
        columns=(
            Column(title="Mode"),
            Column(title="Steady", numeric=True),
            Column(title="With epoch edges", numeric=True),
        ),
        rows=tuple(
            (
                Cell(text=mode_label(name)),
                figure_cell(mode.throughput),
                figure_cell(mode.throughput_with_edges),
            )
            for name, mode in modes.items()
        ),
    )


def _costs(modes: dict[str, ModeSummary]) -> Table:
    return Table(
        caption="What measuring cost. Throughput comes from windows without a profiler.",
        columns=(
            Column(title="Mode"),
            Column(title="dpdoctor's share of a step", numeric=True),
            Column(title="Step while traced, against untraced", numeric=True),
            Column(title="Time the mode took", numeric=True),
        ),
        rows=tuple(
            (
                Cell(text=mode_label(name)),
                figure_cell(mode.observer_cost),
                figure_cell(mode.profiler_cost),
                Cell(text=units.seconds(mode.wall_s), note=units.count(mode.launches, "launch")),
            )
            for name, mode in modes.items()
        ),
    )


SECTION = Section(
    order=20, title="Throughput", question="How many samples per second?", build=build, applies=is_profile
)
