"""The wrap units of FSDP as bars: which of them the step waits for."""

from __future__ import annotations

from collections.abc import Sequence

from dpdoctor import units
from dpdoctor.digest import ShardUnit
from dpdoctor.report.blocks import Chart
from dpdoctor.report.drawing import charts
from dpdoctor.report.text import clipped
from dpdoctor.report.traces.words import NS, seconds

MOST_UNITS = 30
LONGEST_NAME = 32


def shard_unit_chart(found: Sequence[ShardUnit], whose: str) -> Chart:
    """Return the exposed communication of each unit per step, the most first; there is at least one."""
    drawn = found[:MOST_UNITS]
    scale, unit = units.time_scale(max(one.exposed_ns for one in drawn) * NS)
    layout = charts.bar_layout(f"{unit} exposed, per step")
    labels = [charts.plain(clipped(one.name, LONGEST_NAME)) for one in drawn]
    # Rows go by place, not by name: plotly would put two of one name onto each other.
    layout["yaxis"] |= {"tickmode": "array", "tickvals": [*range(len(drawn))], "ticktext": labels}
    left_out = f" Drawn: the first {MOST_UNITS} of {units.whole(len(found))}." if len(drawn) < len(found) else ""
    words = [f"{one.name}: {seconds(one.exposed_ns)} exposed{_prefetched(one)}" for one in drawn]
    return Chart(
        title=f"Units of FSDP on {whose}",
        traces=(
            {
                "type": "bar",
                "orientation": "h",
                "name": "",
                "y": [*range(len(drawn))],
                "x": [float(f"{one.exposed_ns * NS / scale:.6g}") for one in drawn],
                "hovertext": [charts.plain(text) for text in words],
                "hovertemplate": "%{hovertext}<extra></extra>",
                "marker": {"color": charts.VERMILION},
            },
        ),
        layout={**layout, "showlegend": False, "bargap": 0.35},
        height=110 + 26 * len(drawn),
        how_to_read="A bar is the time in which a unit's gathering and scattering ran and nothing computed; it "
        f"lengthens the step.{left_out}",
        alternative=f"{'; '.join(words)}.",
    )


def _prefetched(unit: ShardUnit) -> str:
    return "" if unit.prefetched is None else f", {units.share(unit.prefetched)} of its all-gathers prefetched"
