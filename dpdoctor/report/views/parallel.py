"""What each mode makes of the work: DDP's gradient buckets, FSDP's wrap units, nn.DataParallel's devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from dpdoctor import units
from dpdoctor.analysis import Diagnosis
from dpdoctor.digest import Bucket, DataParallelCost, ShardUnit
from dpdoctor.report.blocks import Block, Cell, Chart, Column, Fold, Table, View
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import NOTHING, amount_cell, clipped, name_cell
from dpdoctor.report.traces.traced import TracedMode, TracedRank, by_mode, has_traces
from dpdoctor.report.traces.words import NS, seconds, time_cell
from dpdoctor.report.words import standing

ONE_DEVICE = "one device alone has neither buckets nor shards nor replicas"
NOTHING_FOUND = "the traces hold no gradient bucket of DDP, no wrap unit of FSDP and no nn.DataParallel"


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode charts and tables of what ran: buckets, units or devices."""
    return by_mode(analysis, "Buckets, units and replicas", _mode)


def _mode(mode: TracedMode) -> Sequence[Block] | str:
    found = [*_buckets(mode), *_shard_units(mode), *_replicas(mode)]
    if found:
        return found
    unknown = mode.traces.why_unknown
    return unknown or (ONE_DEVICE if standing.is_baseline(mode.mode) else NOTHING_FOUND)


# More buckets in one picture are lines; the table has as many.
MOST_BUCKETS = 40
BUCKET_COLUMNS = (
    Column(title="Bucket"),
    Column(title="Size", numeric=True),
    Column(title="Ready", numeric=True),
    Column(title="Reduced", numeric=True),
    Column(title="Exposed", numeric=True),
    Column(title="Tail", numeric=True),
)


def _buckets(mode: TracedMode) -> list[Block]:
    """Return chart and table of the rank whose gradients are reduced last; nothing where no rank has buckets."""
    ranks = [rank for rank in mode.ranks if rank.digest.buckets]
    if not ranks:
        return []
    last = max(ranks, key=lambda rank: max(bucket.end_ns for bucket in rank.digest.buckets))
    whose = last.name if len(ranks) == 1 else f"{last.name}, the last of {len(ranks)} to be done"
    return [_bucket_chart(last, whose), Fold(title="Buckets", blocks=(_bucket_table(last, whose),))]


def _bucket_chart(rank: TracedRank, whose: str) -> Chart:
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
        traces=tuple(_bucket_bar(name, color, values, scale) for name, color, values in parts),
        layout={**layout, "barmode": "stack", "bargap": 0.4},
        height=charts.height(22 * len(buckets)),
        how_to_read="A bar is a bucket, from ready to reduced. Only the tail is sure to lengthen the step.",
        alternative=" ".join(
            f"Bucket {bucket.order}: ready {seconds(bucket.ready_ns)}, reduced {seconds(bucket.end_ns)}, "
            f"tail {seconds(bucket.tail_ns)}."
            for bucket in buckets
        ),
    )


def _bucket_bar(name: str, color: str, values_ns: Sequence[int], scale: float) -> dict[str, Any]:
    drawn = charts.bar_trace(
        name=name,
        color=color,
        x=[value * NS / scale for value in values_ns],
        words=[f"{name}: {seconds(value)}" for value in values_ns],
    )
    return {**drawn, "showlegend": name != "until ready"}


def _tail(bucket: Bucket) -> int:
    """Return the tail as it is drawn: of a bucket that is ready after backward it begins there."""
    return min(bucket.tail_ns, bucket.end_ns - bucket.ready_ns)


def _bucket_table(rank: TracedRank, whose: str) -> Table:
    hidden = len(rank.digest.buckets) - MOST_BUCKETS
    more = f" {units.count(hidden, 'later bucket')} not shown." if hidden > 0 else ""
    return Table(
        caption=f"Buckets of {whose}; medians over backward passes, times since backward began to compute.{more}",
        columns=BUCKET_COLUMNS,
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


# More units in one picture are lines; the table has some more.
MOST_BARS, MOST_UNITS = 30, 60
LONGEST_LABEL, LONGEST_NAME = 32, 48
UNIT_COLUMNS = (
    Column(title="Unit"),
    Column(title="Gathers", numeric=True),
    Column(title="Gathered", numeric=True),
    Column(title="Scatters", numeric=True),
    Column(title="Scattered", numeric=True),
    Column(title="Exposed", numeric=True),
    Column(title="Prefetched", numeric=True),
)


def _shard_units(mode: TracedMode) -> list[Block]:
    """Return chart and table of the rank with most exposed communication; nothing where no rank has units."""
    ranks = [rank for rank in mode.ranks if rank.digest.shard_units]
    if not ranks:
        return []
    worst = max(ranks, key=lambda rank: sum(unit.exposed_ns for unit in rank.digest.shard_units))
    found = sorted(worst.digest.shard_units, key=lambda unit: unit.exposed_ns, reverse=True)
    whose = worst.name if len(ranks) == 1 else f"{worst.name}, of {len(ranks)} the one with most exposed communication"
    more = f" {units.count(len(found) - MOST_UNITS, 'more unit')} not shown." if len(found) > MOST_UNITS else ""
    return [
        _unit_chart(found, whose),
        Table(
            caption=f"Units of FSDP on {whose}; means per step. Gathers are all-gathers, scatters reduce-scatters; "
            f"prefetched ones were issued before the unit asked for them.{more}",
            columns=UNIT_COLUMNS,
            rows=tuple(_unit_row(unit) for unit in found[:MOST_UNITS]),
        ),
    ]


def _unit_chart(found: Sequence[ShardUnit], whose: str) -> Chart:
    """Return the exposed communication of each unit per step, the most first; there is at least one."""
    drawn = found[:MOST_BARS]
    scale, unit = units.time_scale(max(one.exposed_ns for one in drawn) * NS)
    layout = charts.bar_layout(f"{unit} exposed, per step", [clipped(one.name, LONGEST_LABEL) for one in drawn])
    left_out = f" Drawn: the first {MOST_BARS} of {units.whole(len(found))}." if len(drawn) < len(found) else ""
    words = [f"{one.name}: {seconds(one.exposed_ns)} exposed{_prefetched(one)}" for one in drawn]
    return Chart(
        title=f"Units of FSDP on {whose}",
        traces=(
            charts.bar_trace(
                name="",
                color=charts.VERMILION,
                x=[one.exposed_ns * NS / scale for one in drawn],
                words=words,
            ),
        ),
        layout={**layout, "showlegend": False, "bargap": 0.35},
        height=charts.height(22 * len(drawn), num_names=0),
        how_to_read="A bar is the time in which a unit's gathering and scattering ran and nothing computed; it "
        f"lengthens the step.{left_out}",
        alternative=f"{'; '.join(words)}.",
    )


def _prefetched(unit: ShardUnit) -> str:
    return "" if unit.prefetched is None else f", {units.share(unit.prefetched)} of its all-gathers prefetched"


def _unit_row(unit: ShardUnit) -> tuple[Cell, ...]:
    return (
        name_cell(unit.name, LONGEST_NAME),
        amount_cell(unit.all_gathers, ""),
        amount_cell(unit.gathered_bytes, "bytes"),
        amount_cell(unit.reduce_scatters, ""),
        amount_cell(unit.scattered_bytes, "bytes"),
        time_cell(unit.exposed_ns),
        amount_cell(unit.prefetched, "ratio"),
    )


# Part of the work, its name, and (colour, ink on it).
REPLICA_BARS = (
    ("parallel_apply", "forward of the replicas", (charts.BLUE, charts.LIGHT_INK)),
    ("other", "backward, loss and update", (charts.SKY, charts.DARK_INK)),
    ("scatter", "scatter", (charts.ORANGE, charts.DARK_INK)),
    ("replicate", "replicate", (charts.VERMILION, charts.LIGHT_INK)),
    ("gather", "gather", (charts.PURPLE, charts.DARK_INK)),
    ("reduce", "reduce", (charts.GREY, charts.DARK_INK)),
)


def _replicas(mode: TracedMode) -> list[Block]:
    """Return by rank a chart of its devices and a table of all parts; nothing where no rank runs nn.DataParallel."""
    found: list[Block] = []
    for rank in mode.ranks:
        cost = rank.digest.data_parallel
        if cost is not None:
            charts = [_replica_chart(cost, rank.name)] if cost.device_ns else []
            found += [*charts, _replica_table(cost, rank.name)]
    return found


def _replica_chart(cost: DataParallelCost, rank: str) -> Chart:
    """Return a bar per device by what launched its work, per step; there is at least one device."""
    devices = cost.device_ns
    totals = {index: sum(parts.get(key, 0.0) for key, _, _ in REPLICA_BARS) for index, parts in devices.items()}
    scale, unit = units.time_scale(max(totals.values()) * NS)
    layout = charts.bar_layout(f"{unit} per step", [f"GPU {index}" for index in devices])
    return Chart(
        title=f"Devices of nn.DataParallel on {rank}",
        traces=tuple(
            charts.stacked_part(
                name=name,
                colors=colors,
                y=[*range(len(devices))],
                x=[parts.get(key, 0.0) * NS / scale for parts in devices.values()],
                ratios=[_ratio(parts.get(key, 0.0), totals[index]) for index, parts in devices.items()],
                words=[f"GPU {index}, {name}: {seconds(parts.get(key, 0.0))}" for index, parts in devices.items()],
            )
            for key, name, colors in REPLICA_BARS
        ),
        layout={**layout, "barmode": "stack", "bargap": 0.4},
        height=charts.height(38 * len(devices), num_names=len(REPLICA_BARS)),
        how_to_read="A longer bar is a device with more to do, mostly the first: it gathers, reduces and updates while "
        "the others wait.",
        alternative=" ".join(
            f"GPU {index}: "
            + ", ".join(f"{name} {seconds(parts[key])}" for key, name, _ in REPLICA_BARS if parts.get(key))
            + "."
            for index, parts in devices.items()
        ),
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


REPLICA_PARTS = ("scatter", "replicate", "parallel_apply", "gather", "reduce")


def _replica_table(cost: DataParallelCost, rank: str) -> Table:
    return Table(
        caption=f"nn.DataParallel on {rank}: means per traced step, by what launched the work. The excess is "
        "a device's busy time over the mean of the others.",
        columns=(
            Column(title="Where"),
            *(Column(title=part, numeric=True) for part in REPLICA_PARTS),
            Column(title="other", numeric=True),
            Column(title="busy", numeric=True),
            Column(title="excess", numeric=True),
        ),
        rows=(_host_row(cost), *_device_rows(cost.device_ns)),
    )


def _host_row(cost: DataParallelCost) -> tuple[Cell, ...]:
    times = (cost.scatter_ns, cost.replicate_ns, cost.parallel_apply_ns, cost.gather_ns, cost.reduce_ns)
    return (Cell(text="host"), *(time_cell(time) for time in times), *[Cell(text=NOTHING)] * 3)


def _device_rows(device_ns: Mapping[int, Mapping[str, float]]) -> list[tuple[Cell, ...]]:
    busy = {index: parts["busy"] for index, parts in device_ns.items()}
    return [
        (
            Cell(text=f"GPU {index}"),
            *(time_cell(parts.get(part, 0.0)) for part in (*REPLICA_PARTS, "other", "busy")),
            _excess(index, busy),
        )
        for index, parts in device_ns.items()
    ]


def _excess(index: int, busy: Mapping[int, float]) -> Cell:
    others = [time for other, time in busy.items() if other != index]
    if not others:
        return Cell(text=NOTHING, note="no other device")
    excess = busy[index] - fmean(others)
    return time_cell(excess)


VIEW: View[Diagnosis] = View(
    name="parallel", title="Buckets, units, replicas", build=build, applies=has_traces, is_half=True
)
