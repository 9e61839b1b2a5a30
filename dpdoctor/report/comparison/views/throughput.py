"""How many samples per second every mode of every run gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpdoctor.analysis import TRACE_MODE
from dpdoctor.analysis.comparison import Comparison
from dpdoctor.report.blocks import Absent, Block, View
from dpdoctor.report.comparison import rows
from dpdoctor.report.comparison.tables import figure_table
from dpdoctor.report.drawing import charts
from dpdoctor.report.drawing.bars import Bar, interval_bars
from dpdoctor.report.text import absent, mode_label


def build(comparison: Comparison) -> Sequence[Block]:
    """Return bars by mode and run, why some are missing, and the figures beside throughput and step as a table."""
    if {*comparison.modes} <= {TRACE_MODE}:
        return [Absent(what="Throughput", reason="the traces hold no measured windows")]
    bars = [*_bars(comparison)]
    others = rows.of_modes(comparison, rows.other_figures)
    return [
        *([_chart(bars)] if bars else []),
        *absent(_missing(comparison)),
        *([figure_table(comparison, "Other figures of each mode.", others)] if others else []),
    ]


def _chart(bars: Sequence[Bar]) -> Block:
    return interval_bars(
        title="Samples per second, by mode and run",
        bars=bars,
        x_title="over all devices",
        how_to_read="Longer is better; a colour is a run. Whisker: 95 % interval.",
    )


def _bars(comparison: Comparison) -> Iterator[Bar]:
    for name, mode in comparison.modes.items():
        figures = mode.figures["throughput"].figures if name != TRACE_MODE else ()
        for place, figure in enumerate(figures):
            if figure.value is not None:
                color = charts.SERIES_COLORS[place % len(charts.SERIES_COLORS)]
                yield Bar(name=f"{mode_label(name)}, {comparison.runs[place].label}", figure=figure, color=color)


def _missing(comparison: Comparison) -> Iterator[tuple[str, str]]:
    for name, mode in comparison.modes.items():
        figures = mode.figures["throughput"].figures if name != TRACE_MODE else ()
        for run, figure in zip(comparison.runs, figures, strict=False):
            if figure.value is None:
                yield f"{mode_label(name)} in {run.label}", figure.reason or "no reason was recorded"


VIEW: View[Comparison] = View(name="throughput", title="Throughput", build=build)
