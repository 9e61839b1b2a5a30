"""Where the host spends a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpdoctor import units
from dpdoctor.analysis import PHASES, Analysis, ModeSummary
from dpdoctor.report import charts, verdict
from dpdoctor.report.blocks import Absent, Block, Cell, Chart, Column, Paragraph, Section, Table
from dpdoctor.report.text import figure_cell, figure_text, mode_label

COLORS = {
    "data_wait": (charts.VERMILION, "#FFFFFF"),
    "h2d": (charts.ORANGE, "#10161D"),
    "forward": (charts.BLUE, "#FFFFFF"),
    "backward": (charts.SKY, "#10161D"),
    "optimizer": (charts.GREEN, "#FFFFFF"),
    "other": (charts.GREY, "#10161D"),
}
# A narrower part of a bar has no room for its own number; hovering and the table have it.
LABELLED_RATIO = 0.08


def build(analysis: Analysis) -> Sequence[Block]:
    """Return stacked bars of seconds per step, and the same as a table."""
    modes = analysis.summary.modes
    shown = {name: mode for name, mode in modes.items() if verdict.why_withheld(mode) is None}
    measured = {name: mode for name, mode in shown.items() if verdict.phase_ratios(mode) is not None}
    absent = [
        Absent(what=mode_label(name), reason=_reason(mode)) for name, mode in modes.items() if name not in measured
    ]
    if not measured:
        return absent or [Absent(what="Phases", reason="this run has no modes")]
    return [_chart(measured), *absent, *_caution(measured), _table(measured)]


def _reason(mode: ModeSummary) -> str:
    reasons = (figure.reason for figure in mode.phases.values() if figure.value is None)
    return verdict.why_withheld(mode) or next((reason for reason in reasons if reason), "no phase took any time")


def _caution(modes: dict[str, ModeSummary]) -> list[Paragraph]:
    words = (
        "Each part is exclusive time on the host's clock, averaged over steady steps and ranks. "
        "The step in the table is the slowest rank's, so it can be longer than the parts together."
    )
    if any(rank.device.startswith("cuda") for mode in modes.values() for rank in mode.ranks):
        words += (
            " A GPU works behind its host: what the host spends in forward or backward is not the time of the kernels, "
            "and while the host waits for data the GPU may still be busy."
        )
    return [Paragraph(text=words)]


def _chart(modes: dict[str, ModeSummary]) -> Chart:
    totals = [sum(figure.value or 0.0 for figure in mode.phases.values()) for mode in modes.values()]
    scale, unit = units.time_scale(max(totals))
    return Chart(
        title="One step on the host",
        traces=tuple(_bar(modes, phase, scale) for phase in PHASES),
        layout={**charts.bar_layout(f"{unit} per step"), "barmode": "stack", "bargap": 0.4},
        height=130 + 58 * len(modes),
        how_to_read="One bar is one step; a long part takes much of it. Shorter bars are faster steps.",
        alternative=" ".join(_words(name, mode) for name, mode in modes.items()),
    )


def _bar(modes: dict[str, ModeSummary], phase: str, scale: float) -> dict[str, Any]:
    color, ink = COLORS[phase]
    ratios = [(verdict.phase_ratios(mode) or {})[phase] for mode in modes.values()]
    values = [mode.phases[phase].value or 0.0 for mode in modes.values()]
    words = [f"{units.seconds(value)} ({units.share(ratio)})" for value, ratio in zip(values, ratios, strict=True)]
    return {
        "type": "bar",
        "orientation": "h",
        "name": charts.plain(phase),
        "y": [charts.plain(mode_label(name)) for name in modes],
        "x": [value / scale for value in values],
        "text": [units.share(ratio) if ratio >= LABELLED_RATIO else "" for ratio in ratios],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "insidetextfont": {"color": ink},
        "textangle": 0,
        "constraintext": "inside",
        "hovertext": [f"{charts.plain(verdict.phase_words(phase))}: {text}" for text in words],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": color},
    }


def _words(name: str, mode: ModeSummary) -> str:
    ratios = verdict.phase_ratios(mode) or {}
    parts = [f"{phase} {figure_text(mode.phases[phase])} ({units.share(ratio)})" for phase, ratio in ratios.items()]
    return f"{mode_label(name)}: {', '.join(parts)}."


def _table(modes: dict[str, ModeSummary]) -> Table:
    return Table(
        caption="Host time per step by phase, with 95 % intervals within this run.",
        columns=(
            Column(title="Mode"),
            *(Column(title=phase, numeric=True) for phase in PHASES),
            Column(title="step", numeric=True),
        ),
        rows=tuple(
            (
                Cell(text=mode_label(name)),
                *(figure_cell(mode.phases[phase]) for phase in PHASES),
                figure_cell(mode.step),
            )
            for name, mode in modes.items()
        ),
    )


SECTION = Section(
    order=30, title="Where a step goes", question="Is it the loader, the network or the model?", build=build
)
