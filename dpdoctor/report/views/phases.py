"""Where the host spends a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpdoctor import units
from dpdoctor.analysis import ALL_PHASES, Diagnosis, ModeSummary
from dpdoctor.report.blocks import Absent, Block, Cell, Chart, Column, Fold, Note, Table, View
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import NOTHING, absent_of, figure_cell, figure_text, interval_words, mode_label
from dpdoctor.report.traces.traced import is_profile
from dpdoctor.report.words import standing
from dpdoctor.report.words.step_parts import LABELS, phase_ratios, phase_words, step_parts

COLORS = {
    "data_wait": (charts.VERMILION, charts.LIGHT_INK),
    "h2d": (charts.ORANGE, charts.DARK_INK),
    "forward": (charts.BLUE, charts.LIGHT_INK),
    "backward": (charts.SKY, charts.DARK_INK),
    "optimizer": (charts.GREEN, charts.LIGHT_INK),
    "other": (charts.GREY, charts.DARK_INK),
    "communication": (charts.PURPLE, charts.DARK_INK),
}


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return stacked bars of seconds per step, and the same as a table."""
    modes = analysis.summary.modes
    shown = standing.shown_modes(analysis.summary)
    measured = {name: mode for name, mode in shown.items() if phase_ratios(mode) is not None}
    missing = absent_of("Phases", {name: _reason(mode) for name, mode in modes.items() if name not in measured})
    if not measured:
        return missing or [Absent(what="Phases", reason="this run has no modes")]
    return [
        _chart(measured),
        *missing,
        Fold(title="Phases of all modes", blocks=(_table(measured),)),
        *_caution(measured),
    ]


def _reason(mode: ModeSummary) -> str:
    reasons = (figure.reason for figure in mode.phases.values() if figure.value is None)
    return standing.withheld_briefly(mode) or next((reason for reason in reasons if reason), "no phase took any time")


def _caution(modes: dict[str, ModeSummary]) -> list[Note]:
    words = (
        "Each part is exclusive time on the host's clock, averaged over steady steps and ranks. "
        "The step in the table is the slowest rank's, so it can be longer than the parts together."
    )
    if any(rank.device_type == "cuda" for mode in modes.values() for rank in mode.ranks):
        words += (
            " A GPU works behind its host: what the host spends in forward or backward is not the time of the kernels, "
            "and while the host waits for data the GPU may still be busy."
        )
    return [Note(text=words)]


def _chart(modes: dict[str, ModeSummary]) -> Chart:
    totals = [sum(figure.value or 0.0 for figure in mode.phases.values()) for mode in modes.values()]
    scale, unit = units.time_scale(max(totals))
    return Chart(
        title="One step on the host",
        traces=tuple(_bar(modes, phase, scale) for phase in _shown(modes)),
        layout={**charts.bar_layout(f"{unit} per step"), "barmode": "stack", "bargap": 0.4},
        height=charts.height(32 * len(modes), num_names=len(_shown(modes))),
        how_to_read="One bar is one step; a long part takes much of it. Shorter bars are faster steps.",
        alternative=" ".join(_words(name, mode) for name, mode in modes.items()),
    )


def _bar(modes: dict[str, ModeSummary], phase: str, scale: float) -> dict[str, Any]:
    ratios = [(phase_ratios(mode) or {}).get(phase, 0.0) for mode in modes.values()]
    values = [mode.phases[phase].value or 0.0 if phase in mode.phases else 0.0 for mode in modes.values()]
    words = [f"{units.seconds(value)} ({units.share(ratio)})" for value, ratio in zip(values, ratios, strict=True)]
    return charts.stacked_part(
        name=phase,
        colors=COLORS[phase],
        y=[charts.plain(mode_label(name)) for name in modes],
        x=[value / scale for value in values],
        ratios=ratios,
        words=[f"{phase_words(phase)}: {text}" for text in words],
    )


def _shown(modes: dict[str, ModeSummary]) -> list[str]:
    """Return the phases that any mode has."""
    return [phase for phase in ALL_PHASES if any(phase in mode.phases for mode in modes.values())]


def _words(name: str, mode: ModeSummary) -> str:
    ratios = phase_ratios(mode) or {}
    parts = [f"{phase} {figure_text(mode.phases[phase])} ({units.share(ratio)})" for phase, ratio in ratios.items()]
    return f"{mode_label(name)}: {', '.join(parts)}."


def _table(modes: dict[str, ModeSummary]) -> Table:
    return Table(
        caption=f"Host time per step by phase. {interval_words(modes)}",
        columns=(
            Column(title="Mode"),
            *(Column(title=phase, numeric=True) for phase in _shown(modes)),
            Column(title="step", numeric=True),
        ),
        rows=tuple(
            (
                Cell(text=mode_label(name)),
                *(_cell(mode, phase) for phase in _shown(modes)),
                figure_cell(mode.step),
            )
            for name, mode in modes.items()
        ),
    )


def _cell(mode: ModeSummary, phase: str) -> Cell:
    """Return a phase of a mode; of one that is not told apart, nothing."""
    return figure_cell(mode.phases[phase]) if phase in mode.phases else Cell(text=NOTHING)


def result(analysis: Diagnosis) -> str:
    """Return what the step of the leading mode consists of."""
    name = standing.focus(analysis.summary)
    if name is None:
        return ""
    mode = analysis.summary.modes[name]
    parts = [f"{LABELS[part.key].lower()} {part.shown}" for part in step_parts(mode) if part.share]
    return f"{name}: {', '.join(parts)} of {figure_text(mode.step)}" if parts else f"{name}: {figure_text(mode.step)}"


VIEW: View[Diagnosis] = View(
    name="phases",
    title="Step time breakdown (host)",
    build=build,
    applies=is_profile,
    result=result,
    is_half=True,
)
