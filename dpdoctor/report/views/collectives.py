"""The communication of each mode by operation and size of the call, and how fast it went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median_low
from typing import Any

import msgspec

from dpdoctor import units
from dpdoctor.analysis import Diagnosis
from dpdoctor.digest import CollectiveSize, SmallCalls
from dpdoctor.report.blocks import Block, Cell, Chart, Column, Fold, Note, Table, View
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import NOTHING, amount_cell, clipped, name_cell, whole_cell
from dpdoctor.report.traces.bandwidth_chart import bandwidth_chart
from dpdoctor.report.traces.traced import TracedMode, by_mode, focused, has_traces
from dpdoctor.report.traces.words import NS, seconds, time_cell

MOST_SIZES = 40
MOST_OPERATIONS = 12
LONGEST_NAME = 40
COLUMNS = (
    Column(title="Operation"),
    Column(title="Size", numeric=True),
    Column(title="Ranks in the group", numeric=True),
    Column(title="Calls per rank", numeric=True),
    Column(title="Time per rank", numeric=True),
    Column(title="Exposed", numeric=True),
    Column(title="Median call", numeric=True),
    Column(title="algbw", numeric=True),
    Column(title="busbw", numeric=True),
)
NO_SIZE = "the trace does not say how large its tensors were"
NO_FACTOR = (
    "how busy that keeps the links depends on the number of ranks or the operation, which the trace does not say"
)
BANDWIDTH = (
    "Figures are of the whole trace. Exposed is the share of a call's time in which nothing computed. Durations "
    "include waiting for other ranks, so the bandwidths of single ranks are lower bounds of what the network gives. "
    "algbw is size over duration and busbw what each link carried, as nccl-tests define them. "
    "By size: a median far below its dashed line waited; where that line still rises, latency decides."
)


class _Size(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one operation, size and number of ranks, over the ranks that are here."""

    rows: tuple[CollectiveSize, ...]
    num_ranks: int

    @property
    def total_ns(self) -> float:
        return sum(row.total_ns for row in self.rows) / self.num_ranks

    @property
    def exposed_ns(self) -> float:
        return sum(row.exposed_ns for row in self.rows) / self.num_ranks

    @property
    def middle(self) -> CollectiveSize:
        """Return the rank whose median call is the middle one, so that its duration and bandwidths belong together."""
        duration = median_low(row.median_ns for row in self.rows)
        return next(row for row in self.rows if row.median_ns == duration)


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode a chart by operation, a table and a chart by size, and the table of small calls."""
    return by_mode(analysis, "Collectives", _mode)


def _mode(mode: TracedMode) -> Sequence[Block] | str:
    sizes = _sizes(mode)
    if not sizes:
        unknown = mode.traces.why_unknown
        if unknown is not None:
            return unknown
        alone = mode.summary.world_size == 1 and len(mode.ranks) == 1
        return "one process calls no collective" if alone else "the traces hold no collective"
    return [
        _chart(sizes),
        *bandwidth_chart(mode),
        Fold(title="Calls by operation and size", blocks=(_table(sizes), *_small_calls(mode))),
        Note(text=BANDWIDTH),
    ]


def _sizes(mode: TracedMode) -> list[_Size]:
    """Return what all ranks called, the longest first."""
    found: dict[tuple[str, int | None, int | None], list[CollectiveSize]] = {}
    for rank in mode.ranks:
        for row in rank.digest.collectives:
            found.setdefault((row.operation, row.num_bytes, row.group_size), []).append(row)
    sizes = [_Size(rows=tuple(rows), num_ranks=len(mode.ranks)) for rows in found.values()]
    return sorted(sizes, key=lambda size: size.total_ns, reverse=True)


def _chart(sizes: Sequence[_Size]) -> Chart:
    totals: dict[str, tuple[float, float]] = {}
    for size in sizes:
        exposed, hidden = totals.get(size.middle.operation, (0.0, 0.0))
        totals[size.middle.operation] = (exposed + size.exposed_ns, hidden + size.total_ns - size.exposed_ns)
    longest = dict(sorted(totals.items(), key=lambda item: -sum(item[1]))[:MOST_OPERATIONS])
    scale, unit = units.time_scale(max(map(sum, longest.values())) * NS)
    layout = charts.bar_layout(f"{unit} per rank, whole trace", [clipped(name, LONGEST_NAME) for name in longest])
    return Chart(
        title="Communication by operation",
        traces=(
            _bars("exposed", (charts.VERMILION, charts.LIGHT_INK), longest, 0, scale),
            _bars("beside compute", (charts.SKY, charts.DARK_INK), longest, 1, scale),
        ),
        layout={**layout, "barmode": "stack", "bargap": 0.4},
        height=charts.height(30 * len(longest)),
        how_to_read="Only the exposed part costs time. Calls that run at the same time are both counted.",
        alternative=" ".join(
            f"{name}: {seconds(exposed)} exposed, {seconds(hidden)} beside compute."
            for name, (exposed, hidden) in longest.items()
        ),
    )


def _bars(
    name: str, colors: tuple[str, str], totals: dict[str, tuple[float, float]], which: int, scale: float
) -> dict[str, Any]:
    return charts.stacked_part(
        name=name,
        colors=colors,
        y=[*range(len(totals))],
        x=[pair[which] * NS / scale for pair in totals.values()],
        ratios=[pair[which] / sum(pair) if sum(pair) else 0.0 for pair in totals.values()],
        words=[f"{operation}, {name}: {seconds(pair[which])}" for operation, pair in totals.items()],
    )


def _table(sizes: Sequence[_Size]) -> Table:
    hidden = len(sizes) - MOST_SIZES
    more = f" {units.count(hidden, 'more size')} took less time." if hidden > 0 else ""
    return Table(
        caption=f"Collectives by operation and size, the longest first; means over ranks.{more}",
        columns=COLUMNS,
        rows=tuple(_row(size) for size in sizes[:MOST_SIZES]),
    )


def _row(size: _Size) -> tuple[Cell, ...]:
    middle = size.middle
    return (
        name_cell(middle.operation, LONGEST_NAME),
        Cell(text="unknown", footnote=NO_SIZE) if middle.num_bytes is None else amount_cell(middle.num_bytes, "bytes"),
        whole_cell(middle.group_size),
        amount_cell(sum(row.count for row in size.rows) / size.num_ranks, ""),
        time_cell(size.total_ns),
        amount_cell(size.exposed_ns / size.total_ns if size.total_ns else None, "ratio", missing=NOTHING),
        time_cell(middle.median_ns),
        _bandwidth(middle.algbw_gb_s, NO_SIZE),
        _bandwidth(middle.busbw_gb_s, NO_SIZE if middle.num_bytes is None else NO_FACTOR),
    )


def _bandwidth(value: float | None, why_unknown: str) -> Cell:
    if value is None:
        return Cell(text="unknown", footnote=why_unknown)
    return _rate_cell(value)


def _rate_cell(gb_s: float) -> Cell:
    return Cell(text=_rate(gb_s), sort=gb_s * 1e9)


def _rate(gb_s: float) -> str:
    return f"{units.size(gb_s * 1e9)}/s"


def _small_calls(mode: TracedMode) -> Iterator[Block]:
    """Yield how much goes to calls that latency alone decides; nothing where no trace has sizes enough to tell."""
    found: dict[str, list[SmallCalls]] = {}
    for rank in mode.ranks:
        for row in rank.digest.small_calls:
            found.setdefault(row.operation, []).append(row)
    if found:
        yield Table(
            caption="Calls too small for their size to matter: fewer, larger ones would take less time.",
            columns=(
                Column(title="Operation"),
                Column(title="Smaller than", numeric=True),
                Column(title="Such calls", numeric=True),
                Column(title="Their time", numeric=True),
                Column(title="Exposed", numeric=True),
                Column(title="Latency of a call", numeric=True),
                Column(title="Bandwidth of a call", numeric=True),
            ),
            rows=tuple(_small_row(rows) for rows in found.values()),
        )


def _small_row(rows: Sequence[SmallCalls]) -> tuple[Cell, ...]:
    """Return the row of the rank and group to which such calls cost most."""
    worst = max(rows, key=lambda row: row.small_total_ns)
    group = f"group {clipped(worst.group, LONGEST_NAME)}" if worst.group else ""
    return (
        name_cell(worst.operation, LONGEST_NAME, note=group),
        amount_cell(worst.limit_bytes, "bytes"),
        whole_cell(worst.small_count, note=f"of {units.whole(worst.count)} with a known size"),
        time_cell(worst.small_total_ns),
        time_cell(worst.small_exposed_ns),
        time_cell(worst.latency_ns),
        _rate_cell(worst.bandwidth_gb_s),
    )


def result(analysis: Diagnosis) -> str:
    """Return the collective that the leading mode spends most time in."""
    for mode in focused(analysis):
        sizes = _sizes(mode)
        if sizes:
            total, exposed = defaultdict[str, float](float), defaultdict[str, float](float)
            for size in sizes:
                total[size.middle.operation] += size.total_ns
                exposed[size.middle.operation] += size.exposed_ns
            longest = max(total, key=lambda operation: total[operation])
            share = units.share(exposed[longest] / total[longest]) if total[longest] else "0%"
            kinds = units.count(len(total), "operation")
            return f"{mode.mode}: {kinds}, most time in {longest}, {share} of it exposed"
    return ""


VIEW: View[Diagnosis] = View(
    name="collectives",
    title="Collectives",
    build=build,
    applies=has_traces,
    result=result,
    is_half=True,
)
