"""What nn.DataParallel's own work costs: on the host by part, and how much busier one device is than the others."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from dpdoctor import units
from dpdoctor.digest import DataParallelCost
from dpdoctor.report.blocks import Block, Cell, Chart, Column, Table
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import NOTHING
from dpdoctor.report.traces.traced import TracedMode
from dpdoctor.report.traces.words import NS, seconds, time_cell

# Part of the work, its name, and (colour, ink on it).
_BARS = (
    ("parallel_apply", "forward of the replicas", (charts.BLUE, charts.LIGHT_INK)),
    ("other", "backward, loss and update", (charts.SKY, charts.DARK_INK)),
    ("scatter", "scatter", (charts.ORANGE, charts.DARK_INK)),
    ("replicate", "replicate", (charts.VERMILION, charts.LIGHT_INK)),
    ("gather", "gather", (charts.PURPLE, charts.DARK_INK)),
    ("reduce", "reduce", (charts.GREY, charts.DARK_INK)),
)


def data_parallel_chart(cost: DataParallelCost, rank: str) -> Chart:
    """Return a bar per device by what launched its work, per step; there is at least one device."""
    devices = cost.device_ns
    totals = {index: sum(parts.get(key, 0.0) for key, _, _ in _BARS) for index, parts in devices.items()}
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
            for key, name, colors in _BARS
        ),
        layout={**layout, "barmode": "stack", "bargap": 0.4},
        height=charts.height(38 * len(devices), num_names=len(_BARS)),
        how_to_read="A longer bar is a device with more to do, mostly the first: it gathers, reduces and updates while "
        "the others wait.",
        alternative=" ".join(
            f"GPU {index}: "
            + ", ".join(f"{name} {seconds(parts[key])}" for key, name, _ in _BARS if parts.get(key))
            + "."
            for index, parts in devices.items()
        ),
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


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
