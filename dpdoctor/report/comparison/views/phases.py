"""Where the host spends a step, run beside run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpdoctor.analysis import ALL_PHASES, TRACE_MODE, Figure
from dpdoctor.analysis.comparison import Comparison, ModeComparison
from dpdoctor.report.blocks import Absent, Block, Chart, View
from dpdoctor.report.comparison import rows
from dpdoctor.report.comparison.tables import figure_table
from dpdoctor.report.drawing.share_bars import Part, share_bars
from dpdoctor.report.drawing.share_bars import Row as Bar
from dpdoctor.report.text import figure_text, mode_label
from dpdoctor.report.views.phases import COLORS
from dpdoctor.report.words import clauses

PARTS = [Part(key=phase, name=clauses.phase_words(phase), colors=COLORS[phase]) for phase in ALL_PHASES]

CAPTION = "Host time per step by phase, with 95 % intervals. Phases that take no time in any run are left out."


def build(comparison: Comparison) -> Sequence[Block]:
    """Return by mode the phases of each run as bars of one scale, and all of them as a table."""
    if {*comparison.modes} <= {TRACE_MODE}:
        return [Absent(what="Phases", reason="traces alone do not hold them")]
    charts = [chart for name, mode in comparison.modes.items() for chart in _chart(comparison, name, mode)]
    every = rows.of_modes(comparison, rows.phase_rows)
    if not every:
        return [Absent(what="Phases", reason="no run has a mode of which they were measured")]
    return [*charts, figure_table(comparison, CAPTION, every)]


def _chart(comparison: Comparison, name: str, mode: ModeComparison) -> Iterator[Chart]:
    """Yield the bars of one mode, as shares of the step of the first run that has it."""
    columns = [{phase: mode.phases[phase].figures[place] for phase in mode.phases} for place in range(len(mode.states))]
    known = [(run.label, found) for run, found in zip(comparison.runs, columns, strict=True) if _total(found) > 0]
    if not known:
        return
    first, of_first = known[0]
    whole = _total(of_first)
    yield share_bars(
        title=f"{mode_label(name)}: one step on the host",
        whole=f"the host's step in {first}",
        rows=[_bar(f"Run {label}", found, whole) for label, found in known],
        parts=PARTS,
        how_to_read=f"A bar is one step; all are on the scale of {first}'s, so a shorter bar is a faster step.",
        is_full=False,
    )


def _total(phases: dict[str, Figure]) -> float:
    return sum(figure.value or 0.0 for figure in phases.values())


def _bar(name: str, phases: dict[str, Figure], whole: float) -> Bar:
    return Bar(
        name=name,
        ratios={phase: (figure.value or 0.0) / whole for phase, figure in phases.items()},
        amounts={phase: figure_text(figure) for phase, figure in phases.items()},
    )


VIEW: View[Comparison] = View(name="phases", title="Where a step goes", build=build)
