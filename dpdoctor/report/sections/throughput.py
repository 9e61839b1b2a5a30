"""How many samples per second each mode gives, and what measuring them cost."""

from __future__ import annotations

from collections.abc import Sequence

from dpdoctor import units
from dpdoctor.analysis import Diagnosis, ModeSummary
from dpdoctor.report.blocks import Absent, Block, Cell, Column, Paragraph, Section, Table
from dpdoctor.report.drawing.throughput_bars import STEADY, WITH_EDGES, throughput_bars
from dpdoctor.report.text import absent, amount_cell, figure_cell, interval_words, mode_label
from dpdoctor.report.traces.traced import is_profile
from dpdoctor.report.words import standing


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return bars with intervals, the same as a table, and the cost of measuring."""
    shown = standing.shown_modes(analysis.summary)
    measured = {name: mode for name, mode in shown.items() if mode.throughput.value is not None}
    withheld = absent(_reasons(analysis, measured))
    if not measured:
        return withheld or [Absent(what="Throughput", reason="this run has no modes")]
    return [
        throughput_bars(measured, (STEADY, WITH_EDGES)),
        *withheld,
        Paragraph(
            text="Steady leaves out steps in which an epoch began or an evaluation ran; the other bar has as many of "
            "them as an epoch has. "
            "Both count samples of all devices together."
        ),
        _table(measured),
        _costs(measured),
    ]


def _reasons(analysis: Diagnosis, measured: dict[str, ModeSummary]) -> list[tuple[str, str]]:
    return [
        (mode_label(name), standing.withheld_briefly(mode) or mode.throughput.reason or "nothing was measured")
        for name, mode in analysis.summary.modes.items()
        if name not in measured
    ]


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
        caption=(
            "What measuring cost. Throughput comes from windows without a profiler. dpdoctor's share is "
            f"{_how_known(modes)}."
        ),
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
                amount_cell(mode.wall_s, "s", note=units.count(mode.launches, "launch")),
            )
            for name, mode in modes.items()
        ),
    )


def _how_known(modes: dict[str, ModeSummary]) -> str:
    known = [mode.observer_cost for mode in modes.values() if mode.observer_cost.value is not None]
    if any(figure.reason for figure in known) or not known:
        return "estimated from what one hook costs"
    return "what a step of one device takes beyond the same step of the bare script, launched before and after"


SECTION: Section[Diagnosis] = Section(
    name="throughput", title="Throughput", question="How many samples per second?", build=build, applies=is_profile
)
