"""What nn.DataParallel's own work costs: on the host by part, and how much busier one device is than the others."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from dpdoctor.digest import DataParallelCost
from dpdoctor.report.blocks import Block, Cell, Column, Table
from dpdoctor.report.text import NOTHING
from dpdoctor.report.traces.data_parallel_chart import data_parallel_chart
from dpdoctor.report.traces.traced import TracedMode
from dpdoctor.report.traces.words import time_cell

PARTS = ("scatter", "replicate", "parallel_apply", "gather", "reduce")


def blocks(mode: TracedMode) -> list[Block]:
    """Return by rank a chart of its devices and a table of all parts; nothing where no rank runs nn.DataParallel."""
    found: list[Block] = []
    for rank in mode.ranks:
        cost = rank.digest.data_parallel
        if cost is not None:
            charts = [data_parallel_chart(cost, rank.name)] if cost.device_ns else []
            found += [*charts, _table(cost, rank.name)]
    return found


def _table(cost: DataParallelCost, rank: str) -> Table:
    return Table(
        caption=f"nn.DataParallel on {rank}: means per traced step, by what launched the work. The excess is "
        "a device's busy time over the mean of the others.",
        columns=(
            Column(title="Where"),
            *(Column(title=part, numeric=True) for part in PARTS),
            Column(title="other", numeric=True),
            Column(title="busy", numeric=True),
            Column(title="excess", numeric=True),
        ),
        rows=(_host(cost), *_devices(cost.device_ns)),
    )


def _host(cost: DataParallelCost) -> tuple[Cell, ...]:
    times = (cost.scatter_ns, cost.replicate_ns, cost.parallel_apply_ns, cost.gather_ns, cost.reduce_ns)
    return (Cell(text="host"), *(time_cell(time) for time in times), *[Cell(text=NOTHING)] * 3)


def _devices(device_ns: Mapping[int, Mapping[str, float]]) -> list[tuple[Cell, ...]]:
    busy = {index: parts["busy"] for index, parts in device_ns.items()}
    return [
        (
            Cell(text=f"GPU {index}"),
            *(time_cell(parts.get(part, 0.0)) for part in (*PARTS, "other", "busy")),
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
