"""Step time over time, rank by rank: warm-up, ablations, outliers, epoch edges, gc pauses, stragglers.

Beside it a histogram of how long the measured steps took, with those far off named by their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from dpdoctor import units
from dpdoctor.analysis import Diagnosis, RankSummary
from dpdoctor.analysis.base.launches import LaunchFacts
from dpdoctor.analysis.base.summary import why_withheld
from dpdoctor.report.blocks import Absent, Block, Cell, Chart, Column, Fold, Grid, Note, Table, View
from dpdoctor.report.drawing import charts
from dpdoctor.report.drawing.step_chart import find_outliers, outlier_table, step_chart
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
NS = 1e-9
MOST_BINS = 40
# A step longer than the upper quartile by so many times the distance of the quartiles is far off, and on no bar: bars
# that reach to it would be too wide to show the others.
FAR_OFF = 6.0
# More of them are not named.
MOST_NAMED = 8
# Fewer steps have no distribution.
LEAST_STEPS = 10


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode and launch the chart, the steps that stand out and, once per mode, its ranks."""
    modes = by_launch(analysis, lambda named: (*_launch(named, analysis), *_ranks(named, analysis)))
    return [*modes, Note(text=LEGEND)] if modes else [Absent(what="Steps", reason="no mode was launched")]


def _launch(named: NamedLaunch, analysis: Diagnosis) -> list[Block]:
    ranks = [rank for rank in named.launch.ranks if rank.steps]
    if not ranks:
        return [Absent(what="Steps", reason=_why_no_steps(named, analysis))]
    outliers, prefix = find_outliers(ranks), f"step-{named.mode}-{named.launch.record.launch}"
    table = Fold(title="Outlier steps", blocks=(outlier_table(outliers, prefix=prefix),))
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
    withheld = why_withheld(mode) is not None
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


class Bins(msgspec.Struct, frozen=True, kw_only=True):
    """Steps by their length.

    Attributes:
        edges_ns: of the bins, one more than there are; each holds what is below its upper edge, the last that, too.
        counts: steps in each.
        far_off: number and length of the steps beyond the last edge, the longest first.
    """

    edges_ns: tuple[float, ...]
    counts: tuple[int, ...]
    far_off: tuple[tuple[int, int], ...]


def steps_of(named: NamedLaunch) -> dict[int, int]:
    """Return by number the length in ns of every step in a window without experiment, of the slowest rank."""
    found: dict[int, int] = {}
    for window in LaunchFacts.of(named.launch).windows():
        for rank in window.ranks:
            for step in rank.counted:
                found[step.step] = max(step.duration_ns, found.get(step.step, 0))
    return found


def bins(steps: dict[int, int]) -> Bins:
    """Return at least one step in bins of one width."""
    lasted = np.array(list(steps.values()), np.int64)
    low, high = np.quantile(lasted, (0.25, 0.75)).tolist()
    limit = high + FAR_OFF * (high - low)
    near = lasted[lasted <= limit]
    counts, edges = np.histogram(
        near, bins=min(MOST_BINS, math.ceil(2 * math.sqrt(len(near)))) if near.max() > near.min() else 1
    )
    far = sorted(((number, ns) for number, ns in steps.items() if ns > limit), key=lambda item: -item[1])
    return Bins(edges_ns=tuple(edges.tolist()), counts=tuple(counts.tolist()), far_off=tuple(far))


def step_histogram(named: NamedLaunch) -> list[Chart]:
    """Return the histogram of a launch; none where too few steps were measured."""
    steps = steps_of(named)
    if len(steps) < LEAST_STEPS:
        return []
    found, median = bins(steps), float(np.median(list(steps.values()))) * NS
    scale, unit = units.time_scale(found.edges_ns[-1] * NS)
    return [
        Chart(
            title=f"How long steps took, {named.title}",
            traces=(_histogram_bars(found, scale),),
            layout=_histogram_layout(unit, median, scale),
            height=charts.height(90),
            how_to_read=f"One hump is a steady run, two are two kinds of steps. {_far_off(found.far_off)}",
            alternative=_histogram_words(steps, found, median),
        )
    ]


def _histogram_bars(found: Bins, scale: float) -> dict[str, object]:
    edges = [edge * NS for edge in found.edges_ns]
    pairs = list(pairwise(edges))
    return {
        "type": "bar",
        "x": [round((low + high) / 2 / scale, 5) for low, high in pairs],
        "y": list(found.counts),
        "width": [max((high - low) / scale, 1e-6) for low, high in pairs],
        "hovertext": [
            f"{units.count(count, 'step')} of {units.span(units.seconds(low), units.seconds(high))}"
            for count, (low, high) in zip(found.counts, pairs, strict=True)
        ],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "marker": {"color": charts.BLUE},
        "name": "",
    }


def _histogram_layout(unit: str, median_s: float, scale: float) -> dict[str, object]:
    return {
        "xaxis": {"title": {"text": f"{unit} per step"}, "automargin": True},
        "yaxis": {"title": {"text": "steps"}, "automargin": True, "rangemode": "tozero"},
        "bargap": 0,
        "showlegend": False,
        "hovermode": "closest",
        "shapes": [
            {
                "type": "line",
                "yref": "paper",
                "x0": median_s / scale,
                "x1": median_s / scale,
                "y0": 0,
                "y1": 1,
                "line": {"color": charts.VERMILION, "width": 1.5, "dash": "dot"},
            }
        ],
        "annotations": [
            {
                "text": f"median {units.seconds(median_s)}",
                "x": median_s / scale,
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "showarrow": False,
            }
        ],
    }


def _far_off(far: Sequence[tuple[int, int]]) -> str:
    if not far:
        return "No step is far off."
    named = ", ".join(f"{number} ({units.seconds(ns * NS)})" for number, ns in far[:MOST_NAMED])
    more = f" and {len(far) - MOST_NAMED} more" if len(far) > MOST_NAMED else ""
    return f"Too long to draw: {'step' if len(far) == 1 else 'steps'} {named}{more}."


def _histogram_words(steps: dict[int, int], found: Bins, median_s: float) -> str:
    p10, p90 = (np.quantile(list(steps.values()), (0.1, 0.9)) * NS).tolist()
    return (
        f"{units.count(len(steps), 'step')} without experiment: median {units.seconds(median_s)}, 80% between "
        f"{units.seconds(p10)} and {units.seconds(p90)}, longest {units.seconds(max(steps.values()) * NS)}. "
        f"{_far_off(found.far_off)}"
    )


VIEW: View[Diagnosis] = View(name="steps", title="Step times over the run", build=build, applies=is_profile)
