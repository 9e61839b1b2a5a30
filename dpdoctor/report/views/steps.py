"""Step time over time, rank by rank: warm-up, ablations, outliers, epoch edges, gc pauses, stragglers."""

from __future__ import annotations

from collections.abc import Sequence

from dpdoctor import units
from dpdoctor.analysis import Diagnosis, RankSummary
from dpdoctor.report.blocks import Absent, Block, Cell, Column, Fold, Grid, Note, Table, View
from dpdoctor.report.drawing import slow_steps
from dpdoctor.report.drawing.step_chart import step_chart
from dpdoctor.report.drawing.step_histogram import step_histogram
from dpdoctor.report.launches import NamedLaunch, by_launch
from dpdoctor.report.text import NOTHING, figure_cell, mode_label, status_tone, whole_cell
from dpdoctor.report.traces.traced import is_profile
from dpdoctor.report.words import standing

# More rows than these nobody reads; run.json has every rank.
MOST_RANKS = 64
RANK_COLUMNS = (
    Column(title="Rank"),
    Column(title="Status"),
    Column(title="Device"),
    Column(title="Host"),
    Column(title="Steps recorded", numeric=True),
    Column(title="Mean step", numeric=True),
)
LEGEND = (
    "Time of each step on the host's clock. Shaded steps are not measured, nor is the first step after a window edge. "
    "Marks under a curve show when something happened: an epoch began, Python collected garbage. A bar there is a "
    "window of an ablation, in which something was switched off on purpose. A ring leads to its row in the table."
)


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode and launch the chart, the steps that stand out and, once per mode, its ranks."""
    modes = by_launch(analysis, lambda named: (*_launch(named, analysis), *_ranks(named, analysis)))
    return [*modes, Note(text=LEGEND)] if modes else [Absent(what="Steps", reason="no mode was launched")]


def _launch(named: NamedLaunch, analysis: Diagnosis) -> list[Block]:
    ranks = [rank for rank in named.launch.ranks if rank.steps]
    if not ranks:
        return [Absent(what="Steps", reason=_why_no_steps(named, analysis))]
    outliers, prefix = slow_steps.outliers(ranks), f"step-{named.mode}-{named.launch.record.launch}"
    table = Fold(title="Outlier steps", blocks=(slow_steps.table(outliers, prefix=prefix),))
    return [
        Grid(blocks=(*step_histogram(named), step_chart(named, ranks, outliers, prefix))),
        table,
    ]


def _why_no_steps(named: NamedLaunch, analysis: Diagnosis) -> str:
    mode, reason = analysis.summary.modes[named.mode], named.launch.record.reason
    brief = standing.withheld_briefly(mode) if reason == mode.reason else None
    return brief or reason or "no rank recorded a step"


def _ranks(named: NamedLaunch, analysis: Diagnosis) -> list[Block]:
    """Return the table of a mode's ranks, which is over all of its launches and stands with the first."""
    mode = analysis.summary.modes[named.mode]
    if named.launch.record.launch > 1 or not mode.ranks:
        return []
    withheld = standing.why_withheld(mode) is not None
    shown = _first_to_look_at(mode.ranks)
    more = (
        ""
        if len(shown) == len(mode.ranks)
        else (f" Shown: of {units.whole(len(mode.ranks))} those that did not end well and the slowest.")
    )
    table = Table(
        caption=f"Ranks of {mode_label(named.mode)}. The step is the mean of those measured in this run.{more}",
        columns=RANK_COLUMNS,
        rows=tuple(_rank_row(rank, withheld=withheld) for rank in shown),
    )
    return [Fold(title=units.count(len(mode.ranks), "rank"), blocks=(table,))]


def _first_to_look_at(ranks: Sequence[RankSummary]) -> list[RankSummary]:
    """Return the ranks to show, by number: all or, of many, those that did not end well and then the slowest."""
    chosen = sorted(ranks, key=lambda rank: (rank.status == "ok", -(rank.step.value or 0.0)))[:MOST_RANKS]
    return sorted(chosen, key=lambda rank: rank.rank)


def _rank_row(rank: RankSummary, *, withheld: bool) -> tuple[Cell, ...]:
    died_in = f"in phase {rank.stage}" if rank.status != "ok" and rank.stage else ""
    return (
        Cell(text=str(rank.rank), sort=rank.rank),
        Cell(text=rank.status, note=died_in, tone=status_tone(rank.status)),
        Cell(text=rank.device or NOTHING),
        Cell(text=rank.host or NOTHING),
        whole_cell(rank.steps_recorded),
        Cell(text=NOTHING) if withheld else figure_cell(rank.step),
    )


VIEW: View[Diagnosis] = View(name="steps", title="Step times over the run", build=build, applies=is_profile)
