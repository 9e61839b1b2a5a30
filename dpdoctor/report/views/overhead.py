"""What measuring cost."""

from __future__ import annotations

from collections.abc import Sequence

from dpdoctor import units
from dpdoctor.analysis import Diagnosis, ModeSummary
from dpdoctor.report.blocks import Block, Cell, Column, Table, View
from dpdoctor.report.text import absent_of, amount_cell, figure_cell, mode_label
from dpdoctor.report.traces.traced import is_profile
from dpdoctor.report.words import standing


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return what the profiler and dpdoctor itself cost."""
    shown = standing.shown_modes(analysis.summary)
    measured = {name: mode for name, mode in shown.items() if mode.throughput.value is not None}
    withheld = absent_of("Overhead", _reasons(analysis, measured))
    return [*([_costs(measured)] if measured else []), *withheld]


def _reasons(analysis: Diagnosis, measured: dict[str, ModeSummary]) -> dict[str, str]:
    return {
        name: standing.withheld_briefly(mode) or mode.throughput.reason or "nothing was measured"
        for name, mode in analysis.summary.modes.items()
        if name not in measured
    }


def _costs(modes: dict[str, ModeSummary]) -> Table:
    return Table(
        caption=(
            f"dpdoctor: share of a step, {_how_known(modes)}. Profiler: the traced step, which no throughput is from."
        ),
        columns=(
            Column(title="Mode"),
            Column(title="dpdoctor", numeric=True),
            Column(title="Profiler", numeric=True),
            Column(title="Wall time", numeric=True),
        ),
        rows=tuple(
            (
                Cell(text=mode_label(name)),
                figure_cell(mode.observer_overhead),
                figure_cell(mode.profiler_overhead),
                amount_cell(mode.wall_s, "s", note=units.count(mode.launches, "launch")),
            )
            for name, mode in modes.items()
        ),
    )


def _how_known(modes: dict[str, ModeSummary]) -> str:
    known = [mode.observer_overhead for mode in modes.values() if mode.observer_overhead.value is not None]
    if any(figure.reason for figure in known) or not known:
        return "estimated from what one hook costs"
    if all(mode.native is not None for mode in modes.values()):
        return "measured in turns with steps in which its hooks were out"
    return "beyond that of the bare script, launched before and after"


VIEW: View[Diagnosis] = View(
    name="overhead",
    title="Overhead",
    build=build,
    applies=is_profile,
    is_half=True,
)
