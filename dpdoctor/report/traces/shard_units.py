"""The wrap units of FSDP: what each gathers and scatters, what of it is exposed, which of them the step waits for."""

from __future__ import annotations

from collections.abc import Sequence

from dpdoctor import units
from dpdoctor.digest import ShardUnit
from dpdoctor.report.blocks import Block, Cell, Chart, Column, Table
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import amount_cell, clipped, name_cell
from dpdoctor.report.traces.traced import TracedMode
from dpdoctor.report.traces.words import NS, seconds, time_cell

# More units in one picture are lines; the table has some more.
MOST_BARS, MOST_UNITS = 30, 60
LONGEST_LABEL, LONGEST_NAME = 32, 48
COLUMNS = (
    Column(title="Unit"),
    Column(title="Gathers", numeric=True),
    Column(title="Gathered", numeric=True),
    Column(title="Scatters", numeric=True),
    Column(title="Scattered", numeric=True),
    Column(title="Exposed", numeric=True),
    Column(title="Prefetched", numeric=True),
)


def shard_unit_chart(found: Sequence[ShardUnit], whose: str) -> Chart:
    """Return the exposed communication of each unit per step, the most first; there is at least one."""
    drawn = found[:MOST_BARS]
    scale, unit = units.time_scale(max(one.exposed_ns for one in drawn) * NS)
    layout = charts.bar_layout(f"{unit} exposed, per step", [clipped(one.name, LONGEST_LABEL) for one in drawn])
    left_out = f" Drawn: the first {MOST_BARS} of {units.whole(len(found))}." if len(drawn) < len(found) else ""
    words = [f"{one.name}: {seconds(one.exposed_ns)} exposed{_prefetched(one)}" for one in drawn]
    return Chart(
        title=f"Units of FSDP on {whose}",
        traces=(
            charts.bar(
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


def blocks(mode: TracedMode) -> list[Block]:
    """Return chart and table of the rank with most exposed communication; nothing where no rank has units."""
    ranks = [rank for rank in mode.ranks if rank.digest.shard_units]
    if not ranks:
        return []
    worst = max(ranks, key=lambda rank: sum(unit.exposed_ns for unit in rank.digest.shard_units))
    found = sorted(worst.digest.shard_units, key=lambda unit: unit.exposed_ns, reverse=True)
    whose = worst.name if len(ranks) == 1 else f"{worst.name}, of {len(ranks)} the one with most exposed communication"
    more = f" {units.count(len(found) - MOST_UNITS, 'more unit')} not shown." if len(found) > MOST_UNITS else ""
    return [
        shard_unit_chart(found, whose),
        Table(
            caption=f"Units of FSDP on {whose}; means per step. Gathers are all-gathers, scatters reduce-scatters; "
            f"prefetched ones were issued before the unit asked for them.{more}",
            columns=COLUMNS,
            rows=tuple(_row(unit) for unit in found[:MOST_UNITS]),
        ),
    ]


def _row(unit: ShardUnit) -> tuple[Cell, ...]:
    return (
        name_cell(unit.name, LONGEST_NAME),
        amount_cell(unit.all_gathers, ""),
        amount_cell(unit.gathered_bytes, "bytes"),
        amount_cell(unit.reduce_scatters, ""),
        amount_cell(unit.scattered_bytes, "bytes"),
        time_cell(unit.exposed_ns),
        amount_cell(unit.prefetched, "ratio"),
    )
