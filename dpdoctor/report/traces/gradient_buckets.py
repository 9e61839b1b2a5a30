"""The gradient buckets of DDP: when each is ready, and what its communication goes on after backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpdoctor import units
from dpdoctor.digest import Bucket
from dpdoctor.report.blocks import Block, Cell, Chart, Column, Fold, Table
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import amount_cell
from dpdoctor.report.traces.traced import TracedMode, TracedRank
from dpdoctor.report.traces.words import NS, seconds, time_cell

# More buckets in one picture are lines; the table has as many.
MOST_BUCKETS = 40
COLUMNS = (
    Column(title="Bucket"),
    Column(title="Size", numeric=True),
    Column(title="Ready", numeric=True),
    Column(title="Reduced", numeric=True),
    Column(title="Exposed", numeric=True),
    Column(title="Tail", numeric=True),
)


def blocks(mode: TracedMode) -> list[Block]:
    """Return chart and table of the rank whose gradients are reduced last; nothing where no rank has buckets."""
    ranks = [rank for rank in mode.ranks if rank.digest.buckets]
    if not ranks:
        return []
    last = max(ranks, key=lambda rank: max(bucket.end_ns for bucket in rank.digest.buckets))
    whose = last.name if len(ranks) == 1 else f"{last.name}, the last of {len(ranks)} to be done"
    return [_chart(last, whose), Fold(title="Buckets", blocks=(_table(last, whose),))]


def _chart(rank: TracedRank, whose: str) -> Chart:
    buckets = rank.digest.buckets[:MOST_BUCKETS]
    scale, unit = units.time_scale(max(bucket.end_ns for bucket in buckets) * NS)
    layout = charts.bar_layout(
        f"{unit} since backward began to compute", [f"bucket {bucket.order}" for bucket in buckets]
    )
    parts = (
        ("until ready", "rgba(0, 0, 0, 0)", [bucket.ready_ns for bucket in buckets]),
        ("during backward", charts.SKY, [bucket.end_ns - bucket.ready_ns - _tail(bucket) for bucket in buckets]),
        ("tail, after backward", charts.VERMILION, [_tail(bucket) for bucket in buckets]),
    )
    return Chart(
        title=f"Gradient buckets of {whose}",
        traces=tuple(_bar(name, color, values, scale) for name, color, values in parts),
        layout={**layout, "barmode": "stack", "bargap": 0.4},
        height=charts.height(22 * len(buckets)),
        how_to_read="A bar is a bucket, from ready to reduced. Only the tail is sure to lengthen the step.",
        alternative=" ".join(
            f"Bucket {bucket.order}: ready {seconds(bucket.ready_ns)}, reduced {seconds(bucket.end_ns)}, "
            f"tail {seconds(bucket.tail_ns)}."
            for bucket in buckets
        ),
    )


def _bar(name: str, color: str, values_ns: Sequence[int], scale: float) -> dict[str, Any]:
    drawn = charts.bar(
        name=name,
        color=color,
        x=[value * NS / scale for value in values_ns],
        words=[f"{name}: {seconds(value)}" for value in values_ns],
    )
    return {**drawn, "showlegend": name != "until ready"}


def _tail(bucket: Bucket) -> int:
    """Return the tail as it is drawn: of a bucket that is ready after backward it begins there."""
    return min(bucket.tail_ns, bucket.end_ns - bucket.ready_ns)


def _table(rank: TracedRank, whose: str) -> Table:
    hidden = len(rank.digest.buckets) - MOST_BUCKETS
    more = f" {units.count(hidden, 'later bucket')} not shown." if hidden > 0 else ""
    return Table(
        caption=f"Buckets of {whose}; medians over backward passes, times since backward began to compute.{more}",
        columns=COLUMNS,
        rows=tuple(
            (
                Cell(text=str(bucket.order), sort=bucket.order),
                amount_cell(bucket.num_bytes, "bytes"),
                time_cell(bucket.ready_ns),
                time_cell(bucket.end_ns),
                time_cell(bucket.exposed_ns),
                time_cell(bucket.tail_ns),
            )
            for bucket in rank.digest.buckets[:MOST_BUCKETS]
        ),
    )
