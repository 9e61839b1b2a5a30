"""The wrap units of FSDP: what each gathers and scatters, and what of it is exposed."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.digest import ShardUnit
from dpdoctor.report.blocks import Block, Cell, Column, Table
from dpdoctor.report.text import amount_cell, name_cell
from dpdoctor.report.traces.shard_unit_chart import shard_unit_chart
from dpdoctor.report.traces.traced import TracedMode
from dpdoctor.report.traces.words import time_cell

MOST_UNITS = 60
LONGEST_NAME = 48
COLUMNS = (
    Column(title="Unit"),
    Column(title="All-gathers", numeric=True),
    Column(title="Gathered", numeric=True),
    Column(title="Reduce-scatters", numeric=True),
    Column(title="Scattered", numeric=True),
    Column(title="Exposed", numeric=True),
    Column(title="Prefetched", numeric=True),
)


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
            caption=f"Units of FSDP on {whose}; means per step. Prefetched all-gathers were issued before the unit "
            f"asked for them.{more}",
            columns=COLUMNS,
            rows=tuple(_row(unit) for unit in found[:MOST_UNITS]),
        ),
    ]


def _row(unit: ShardUnit) -> tuple[Cell, ...]:
    return (
        name_cell(unit.name, LONGEST_NAME),
        amount_cell(unit.all_gathers, ""),
        _size(unit.gathered_bytes),
        amount_cell(unit.reduce_scatters, ""),
        _size(unit.scattered_bytes),
        time_cell(unit.exposed_ns),
        amount_cell(unit.prefetched, "ratio"),
    )


def _size(num_bytes: float | None) -> Cell:
    return amount_cell(num_bytes, "bytes")
