"""What every device runs for nn.DataParallel as bars: whether one of them does more than the others."""

from __future__ import annotations

from dpdoctor import units
from dpdoctor.digest import DataParallelCost
from dpdoctor.report.blocks import Chart
from dpdoctor.report.drawing import charts
from dpdoctor.report.traces.words import NS, seconds

# Part of the work, its name, and (colour, ink on it).
PARTS = (
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
    totals = {index: sum(parts.get(key, 0.0) for key, _, _ in PARTS) for index, parts in devices.items()}
    scale, unit = units.time_scale(max(totals.values()) * NS)
    layout = charts.bar_layout(f"{unit} per step")
    layout["yaxis"] |= {"tickmode": "array", "tickvals": [*range(len(devices))]}
    layout["yaxis"]["ticktext"] = [f"GPU {index}" for index in devices]
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
            for key, name, colors in PARTS
        ),
        layout={**layout, "barmode": "stack", "bargap": 0.4},
        height=130 + 46 * len(devices),
        how_to_read="A longer bar is a device with more to do, mostly the first: it gathers, reduces and updates while "
        "the others wait.",
        alternative=" ".join(
            f"GPU {index}: "
            + ", ".join(f"{name} {seconds(parts[key])}" for key, name, _ in PARTS if parts.get(key))
            + "."
            for index, parts in devices.items()
        ),
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
