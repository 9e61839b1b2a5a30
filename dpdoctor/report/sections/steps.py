"""Step time over time, rank by rank: warm-up, outliers, epoch edges, gc pauses, stragglers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpdoctor import units
from dpdoctor.analysis import Analysis, Rank, RankSummary
from dpdoctor.report import charts, lanes, standing
from dpdoctor.report.blocks import Absent, Block, Cell, Chart, Column, Fold, Paragraph, Section, Table
from dpdoctor.report.launches import NamedLaunch, is_open, launches
from dpdoctor.report.text import NOTHING, amount_cell, figure_cell, mode_label, status_tone, whole_cell
from dpdoctor.report.traces.traced import is_profile

NS = 1e-9
# Above this the slowest step would flatten all others on a linear axis.
LOGARITHMIC_RATIO = 8.0
RANK_COLUMNS = (
    Column(title="Rank"),
    Column(title="Status"),
    Column(title="Device"),
    Column(title="Host"),
    Column(title="Steps recorded", numeric=True),
    Column(title="Mean step", numeric=True),
    Column(title="Peak memory", numeric=True),
)
LEGEND = (
    "Time of each step on the host's clock. Shaded steps are not measured, nor is the first step after a window edge. "
    "Marks under a curve show when something happened: an epoch began, Python collected garbage."
)


def build(analysis: Analysis) -> Sequence[Block]:
    """Return a fold per launch with a chart and, once per mode, the table of its ranks; the headline's mode is open."""
    focus = standing.focus(analysis.summary)
    folds = [
        Fold(
            title=named.title,
            blocks=(_launch(named, analysis), *_ranks(named, analysis)),
            is_open=is_open(named, focus),
        )
        for named in launches(analysis)
    ]
    return [Paragraph(text=LEGEND), *folds] if folds else [Absent(what="Steps", reason="no mode was launched")]


def _launch(named: NamedLaunch, analysis: Analysis) -> Chart | Absent:
    ranks = [rank for rank in named.launch.ranks if rank.steps]
    if not ranks:
        return Absent(what="Steps", reason=_why_no_steps(named, analysis))
    drawn = _slowest(ranks)
    shortest, median, longest = _spread(drawn)
    scale, unit = units.time_scale(longest)
    layout = charts.time_layout(unit)
    logarithmic = shortest > 0 and longest > LOGARITHMIC_RATIO * median
    if logarithmic:
        scale, layout["yaxis"] = 1.0, charts.logarithmic_seconds(shortest, longest)
    layout["showlegend"] = len(drawn) > 1
    events = lanes.events(drawn, named.origin_ns)
    return Chart(
        title=f"Steps of {named.title}",
        traces=(*(_curve(rank, named.origin_ns, scale, index) for index, rank in enumerate(drawn)), *events),
        layout=lanes.with_windows(layout, drawn[0], named.launch.ranks, named.origin_ns, has_lanes=bool(events)),
        height=400 if events else 320,
        how_to_read=_how_to_read(ranks, drawn, logarithmic=logarithmic),
        alternative=" ".join(_words(rank) for rank in drawn),
    )


def _why_no_steps(named: NamedLaunch, analysis: Analysis) -> str:
    mode, reason = analysis.summary.modes[named.mode], named.launch.record.reason
    brief = standing.withheld_briefly(mode) if reason == mode.reason else None
    return brief or reason or "no rank recorded a step"


def _slowest(ranks: Sequence[Rank]) -> list[Rank]:
    """Return the ranks to draw: all, or those with the longest median step, by index."""
    slowest = sorted(ranks, key=_median_s, reverse=True)[: charts.MOST_SERIES]
    return sorted(slowest, key=lambda rank: rank.index)


def _median_s(rank: Rank) -> float:
    durations = sorted(step.duration_ns for step in rank.steps)
    return durations[len(durations) // 2] * NS


def _spread(ranks: Sequence[Rank]) -> tuple[float, float, float]:
    """Return the shortest, the middle and the longest step of all ranks, in seconds."""
    durations = sorted(step.duration_ns * NS for rank in ranks for step in rank.steps)
    return durations[0], durations[len(durations) // 2], durations[-1]


def _curve(rank: Rank, origin_ns: int, scale: float, index: int) -> dict[str, Any]:
    return charts.line(
        name=f"rank {rank.index}",
        x=[(step.begin_ns + step.duration_ns - origin_ns) * NS for step in rank.steps],
        y=[step.duration_ns * NS for step in rank.steps],
        unit="s",
        scale=scale,
        color=charts.SERIES_COLORS[index % len(charts.SERIES_COLORS)],
    )


def _how_to_read(ranks: Sequence[Rank], drawn: Sequence[Rank], *, logarithmic: bool) -> str:
    words = "One line per rank. Flat is good; a line above the others is a slow rank."
    if logarithmic:
        words += " Logarithmic: a few steps are far longer than the rest."
    if len(drawn) < len(ranks):
        words += f" Drawn: the {len(drawn)} ranks with the longest median step, of {len(ranks)}."
    return words + charts.thinned_words(max(len(rank.steps) for rank in drawn))


def _words(rank: Rank) -> str:
    _, median, longest = _spread([rank])
    edges = sum(step.epoch_edge for step in rank.steps)
    return (
        f"Rank {rank.index}: {units.count(len(rank.steps), 'step')}, median {units.seconds(median)}, "
        f"longest {units.seconds(longest)}, {units.count(edges, 'epoch edge')}."
    )


def _ranks(named: NamedLaunch, analysis: Analysis) -> list[Table]:
    """Return the table of a mode's ranks, which is over all of its launches and stands with the first."""
    mode = analysis.summary.modes[named.mode]
    if named.launch.record.launch > 1 or not mode.ranks:
        return []
    withheld = standing.why_withheld(mode) is not None
    return [
        Table(
            caption=f"Ranks of {mode_label(named.mode)}. The step is the median over measured steps, within this run.",
            columns=RANK_COLUMNS,
            rows=tuple(_rank_row(rank, withheld=withheld) for rank in mode.ranks),
        )
    ]


def _rank_row(rank: RankSummary, *, withheld: bool) -> tuple[Cell, ...]:
    died_in = f"in phase {rank.phase}" if rank.status != "ok" and rank.phase else ""
    return (
        Cell(text=str(rank.rank), sort=rank.rank),
        Cell(text=rank.status, note=died_in, tone=status_tone(rank.status)),
        Cell(text=rank.device or NOTHING),
        Cell(text=rank.host or NOTHING),
        whole_cell(rank.steps_recorded),
        Cell(text=NOTHING) if withheld else figure_cell(rank.step),
        amount_cell(rank.peak_memory_bytes, "bytes", missing=NOTHING),
    )


SECTION = Section(
    order=40, title="Step by step", question="Is it steady, and are all ranks alike?", build=build, applies=is_profile
)
