"""Steps that stand out: a mark in the chart of the steps, and a row below it that the mark leads to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dpdoctor import units
from dpdoctor.analysis import Rank
from dpdoctor.analysis.slow_steps import SlowStep, slow_steps
from dpdoctor.report.blocks import Cell, Column, Paragraph, Table
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import NOTHING, amount_cell
from dpdoctor.report.words import clauses

NS = 1e-9
# The others cost less; how many they are is said.
MOST_ROWS = 40
MOST_EVENTS = 3
COLUMNS = (
    Column(title="Step", numeric=True),
    Column(title="Took", numeric=True),
    Column(title="Usually", numeric=True),
    Column(title="Times as long", numeric=True),
    Column(title="What took longer"),
    Column(title="What happened in it"),
)
RULE = (
    "A step stands out where it takes at least a quarter longer than is usual for its rank and lies more than 3.5 "
    "robust standard deviations above that (median and median absolute deviation). Left out are windows of ablations, "
    "and steps in which an epoch began, an evaluation ran or a checkpoint was written."
)
NONE = "No measured step stands out."


class Outlier(msgspec.Struct, frozen=True, kw_only=True):
    """One step that stood out on one or more ranks, the longest first."""

    ranks: tuple[SlowStep, ...]

    @property
    def longest(self) -> SlowStep:
        """Return the step of the rank on which it took longest."""
        return self.ranks[0]

    @property
    def lost_ns(self) -> int:
        """Return by how much it was longer than usual there."""
        return self.longest.step.duration_ns - self.longest.usual_ns


def outliers(ranks: Sequence[Rank]) -> list[Outlier]:
    """Return the steps that stand out on any rank, those that lost most time first."""
    by_number: dict[int, list[SlowStep]] = {}
    for rank in ranks:
        for slow in slow_steps(rank):
            by_number.setdefault(slow.step.step, []).append(slow)
    found = [
        Outlier(ranks=tuple(sorted(slow, key=lambda one: one.step.duration_ns, reverse=True)))
        for slow in by_number.values()
    ]
    return sorted(found, key=lambda outlier: outlier.lost_ns, reverse=True)


def marks(found: Sequence[Outlier], *, origin_ns: int, scale: float, prefix: str) -> list[dict[str, Any]]:
    """Return one trace of rings around the outliers that have a row; empty without any.

    `scale` is what one unit of the y axis is worth in seconds; `prefix` is that of the rows' anchors.
    """
    shown = found[:MOST_ROWS]
    if not shown:
        return []
    longest = [outlier.longest for outlier in shown]
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "stands out",
            "x": [round((slow.step.begin_ns + slow.step.duration_ns - origin_ns) * NS, 4) for slow in longest],
            "y": [float(f"{slow.step.duration_ns * NS / scale:.6g}") for slow in longest],
            "text": [charts.plain(_words(outlier)) for outlier in shown],
            "customdata": [_anchor(prefix, outlier) for outlier in shown],
            "hovertemplate": "%{text}<br>Click for its row below.<extra></extra>",
            "marker": {"symbol": "circle-open", "size": 13, "color": charts.VERMILION, "line": {"width": 2}},
        }
    ]


def table(found: Sequence[Outlier], *, prefix: str) -> Table | Paragraph:
    """Return the outliers with what took longer in them and what was recorded meanwhile, or that there are none."""
    if not found:
        return Paragraph(text=f"{NONE} {RULE}")
    more = f" Shown: the {MOST_ROWS} longest of {units.whole(len(found))}." if len(found) > MOST_ROWS else ""
    return Table(
        caption=f"Outlier steps, the costliest first.{more} {RULE}",
        columns=COLUMNS,
        rows=tuple(_row(outlier, prefix) for outlier in found[:MOST_ROWS]),
    )


def alternative(found: Sequence[Outlier]) -> str:
    """Return what the marks show, in words."""
    if not found:
        return NONE
    stand = "step stands" if len(found) == 1 else "steps stand"
    return f"{units.whole(len(found))} {stand} out; the costliest is {_words(found[0])}."


def _words(outlier: Outlier) -> str:
    slow = outlier.longest
    took, usual = units.seconds(slow.step.duration_ns * NS), units.seconds(slow.usual_ns * NS)
    return f"step {slow.step.step}, rank {slow.rank}: {took}, usually {usual}"


def _row(outlier: Outlier, prefix: str) -> tuple[Cell, ...]:
    slow = outlier.longest
    others = f", the longest of {units.count(len(outlier.ranks), 'rank')}" if len(outlier.ranks) > 1 else ""
    times = slow.step.duration_ns / slow.usual_ns if slow.usual_ns else None
    return (
        Cell(text=str(slow.step.step), anchor=_anchor(prefix, outlier), sort=slow.step.step),
        amount_cell(slow.step.duration_ns * NS, "s", note=f"rank {slow.rank}{others}"),
        amount_cell(slow.usual_ns * NS, "s"),
        amount_cell(times, "x", missing=NOTHING),
        Cell(text="; ".join(_phases(outlier))),
        Cell(text="; ".join(_events(outlier)) or NOTHING),
    )


def _anchor(prefix: str, outlier: Outlier) -> str:
    return f"{prefix}-{outlier.longest.step.step}"


def _phases(outlier: Outlier) -> Iterator[str]:
    """Yield each phase that took longer with the ranks on which it did; one rank alone comes first.

    Ranks that wait for one of them spend that in backward or in the optimizer, where they communicate.
    """
    phases = Counter(slow.phase for slow in outlier.ranks)
    for phase, number in sorted(phases.items(), key=lambda item: item[1]):
        of_phase = [slow for slow in outlier.ranks if slow.phase == phase]
        longest = max(of_phase, key=lambda slow: slow.longer_ns)
        where = f"rank {longest.rank}" if number == 1 else units.count(number, "rank")
        more = "" if number == 1 else "up to "
        yield f"{clauses.phase_words(phase)} on {where}: {more}{units.seconds(longest.longer_ns * NS)} more"


def _events(outlier: Outlier) -> Iterator[str]:
    """Yield what happened in the step on any of the ranks on which it stood out, the longest first."""
    events = [(event, slow.rank) for slow in outlier.ranks for event in slow.events]
    events.sort(key=lambda item: item[0].duration_ns, reverse=True)
    for event, rank in events[:MOST_EVENTS]:
        length = f" {units.seconds(event.duration_ns * NS)}" if event.duration_ns else ""
        detail = f" ({event.detail})" if event.detail else ""
        yield f"{event.kind}{length} on rank {rank}{detail}"
    if len(events) > MOST_EVENTS:
        yield f"{units.count(len(events) - MOST_EVENTS, 'more event')}"
