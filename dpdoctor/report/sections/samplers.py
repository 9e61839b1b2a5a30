"""What the host and the devices did meanwhile: load, memory, power, clocks."""

from __future__ import annotations

from collections.abc import Sequence

from dpdoctor import units
from dpdoctor.analysis import Analysis
from dpdoctor.report import charts, standing
from dpdoctor.report.blocks import Absent, Block, Cell, Chart, Column, Fold, Grid, Paragraph, Section, Table
from dpdoctor.report.launches import NamedLaunch, is_open, launches
from dpdoctor.report.series import Curve, Panel, panels, unknowns, words_of
from dpdoctor.report.text import amount
from dpdoctor.report.traces.traced import is_profile

GPU_READINGS = "GPU utilisation, memory, power and clocks"
_KIND_WORDS = {"host": "Host", "rank": "Processes", "gpu": "GPU"}
_UNIT_WORDS = {
    "ratio": "load",
    "cores": "load",
    "bytes": "memory",
    "W": "power",
    "MHz": "clocks",
    "°C": "temperature",
    "GB/s": "transfer rate",
    "": "other readings",
}
_HINTS = {
    (
        "host",
        "ratio",
    ): "CPU is the share of all cores in use; pressure is the share of time in which something waited for a core.",
    ("rank", "cores"): "Cores in use: 1 is one core all the time; workers are a rank's DataLoader processes, added up.",
    (
        "gpu",
        "ratio",
    ): "Kernel running is the share of time in which any kernel ran, one that only waits for other ranks too: "
    "not how busy the GPU was.",
    ("gpu", "MHz"): "A clock that falls while power is at its limit means that the device throttles.",
}


def build(analysis: Analysis) -> Sequence[Block]:
    """Return a fold per launch with a small chart per kind of source and unit; the headline's mode is open."""
    focus = standing.focus(analysis.summary)
    folds = [
        Fold(
            title=named.title,
            blocks=tuple(_launch(named, analysis)),
            is_open=is_open(named, focus),
        )
        for named in launches(analysis)
    ]
    if not folds:
        return [Absent(what="Samplers", reason="no mode was launched")]
    on_cpu = not analysis.run.header.spec.devices
    return [*folds, Absent(what=GPU_READINGS, reason="this run used the CPU")] if on_cpu else folds


def _launch(named: NamedLaunch, analysis: Analysis) -> list[Block]:
    samples = named.launch.samples
    blocks: list[Block] = []
    if samples:
        blocks.append(
            Paragraph(text=f"{units.count(len(samples), 'reading')}, on the same time axis as the steps above.")
        )
        charts_found = tuple(_chart(panel) for panel in panels(samples, named.origin_ns))
        blocks.append(Grid(blocks=charts_found))
    else:
        blocks.append(Absent(what="Samplers", reason="no reading was recorded in this launch"))
    if analysis.run.header.spec.devices and not any(sample.source.startswith("gpu") for sample in samples):
        reason = "the sampler recorded no reading of a GPU; dpdoctor reads NVIDIA's NVML"
        blocks.append(Absent(what=GPU_READINGS, reason=reason))
    missing = unknowns(samples)
    return [*blocks, _unknown_table(missing)] if missing else blocks


def _chart(panel: Panel) -> Chart:
    drawn = sorted(panel.curves, key=lambda curve: max(curve.known, default=0.0), reverse=True)[: charts.MOST_SERIES]
    largest = max((max(curve.known, default=0.0) for curve in drawn), default=0.0)
    scale, axis_unit = charts.axis_scale(panel.unit, largest)
    kind, what = _KIND_WORDS.get(panel.kind, panel.kind), _UNIT_WORDS.get(panel.unit, panel.unit)
    return Chart(
        title=f"{kind}: {what}",
        traces=tuple(
            charts.line(
                name=_name(curve),
                x=curve.x,
                y=curve.y,
                unit=panel.unit,
                scale=scale,
                color=charts.SERIES_COLORS[index % len(charts.SERIES_COLORS)],
            )
            for index, curve in enumerate(drawn)
        ),
        layout=charts.time_layout(axis_unit),
        height=280,
        how_to_read=_how_to_read(panel, drawn),
        alternative=" ".join(_words(curve, panel.unit) for curve in drawn),
    )


def _name(curve: Curve) -> str:
    return f"{curve.source} {words_of(curve.key)}"


def _how_to_read(panel: Panel, drawn: Sequence[Curve]) -> str:
    words = _HINTS.get((panel.kind, panel.unit), "Each line is one reading over time.")
    if len(drawn) < len(panel.curves):
        words += f" Drawn: the {len(drawn)} that reach highest, of {len(panel.curves)}."
    return words + charts.thinned_words(max(len(curve.y) for curve in drawn))


def _words(curve: Curve, unit: str) -> str:
    known = curve.known
    mean = amount(sum(known) / len(known), unit)
    return f"{_name(curve)}: mean {mean}, from {amount(min(known), unit)} to {amount(max(known), unit)}."


def _unknown_table(missing: Sequence[tuple[str, str, str]]) -> Table:
    return Table(
        caption="Readings that could not be had.",
        columns=(Column(title="Source"), Column(title="Reading"), Column(title="Reason")),
        rows=tuple(tuple(Cell(text=text) for text in row) for row in missing),
    )


SECTION = Section(
    order=50, title="Host and devices", question="Was the machine busy, and with what?", build=build, applies=is_profile
)
