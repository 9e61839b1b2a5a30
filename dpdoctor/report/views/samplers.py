"""What the host and the devices did meanwhile: load, memory, power and clocks on one time axis with the steps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from dpdoctor import units
from dpdoctor.analysis import Diagnosis, Rank, Sample
from dpdoctor.report.blocks import Absent, Block, Cell, Chart, Column, Fold, Paragraph, Table, View
from dpdoctor.report.drawing import charts
from dpdoctor.report.drawing.step_chart import logarithmic_axis, shade, unmeasured
from dpdoctor.report.drawing.strips import (
    Curve,
    Panel,
    Strip,
    gained,
    grouped,
    kind_of,
    panels,
    strip_chart,
    throttle_strip,
    unit_of,
    unknowns,
    words_of,
)
from dpdoctor.report.launches import NamedLaunch, by_launch, launches
from dpdoctor.report.text import amount, amount_cell
from dpdoctor.report.traces.traced import is_profile
from dpdoctor.report.words import standing

NS = 1e-9
# Readings that tell how much there is.
_ALWAYS = re.compile("num_.*|.*_total_bytes")
# A strip is low.
MOST_TICKS = 5
GPU = "gpu"
GPU_READINGS = "GPU utilisation, memory, power and clocks"
_KIND_WORDS = {"host": "Host", "rank": "Processes", GPU: "GPU"}
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
# NVML's word for it is utilisation, which it is not.
_TITLES = {(GPU, "ratio"): "GPU: share of time in which a kernel ran"}
_HINTS = {
    (
        "host",
        "ratio",
    ): "CPU: share of all cores in use; pressure: share of time in which something waited for a core.",
    ("rank", "cores"): "Cores: 1 is one core all the time; workers are a rank's DataLoader processes together.",
    (
        GPU,
        "ratio",
    ): "A kernel that only waits for other ranks runs too: the share of time in which a kernel ran is not how busy "
    "the GPU was.",
    (GPU, "MHz"): "A clock that falls while power is at its limit means that the device throttles.",
}
MEMORY = "bytes"
# Readings, those of them that are drawn, and which are left out.
_Found: TypeAlias = tuple[Panel, Panel, str]
HOW_TO_READ = "All strips share the time axis; shaded stretches are not measured. Drag to zoom, double-click to undo."


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode and launch strips of all readings below the steps."""
    modes: list[Block] = [*by_launch(analysis, lambda named: _launch(named, analysis))]
    if not modes:
        return [Absent(what="Samplers", reason="no mode was launched")]
    on_cpu = not analysis.run.header.spec.devices
    return [*modes, Absent(what=GPU_READINGS, reason="this run used the CPU")] if on_cpu else modes


def _launch(named: NamedLaunch, analysis: Diagnosis) -> Iterator[Block]:
    samples = named.launch.samples
    devices = [sample for sample in samples if kind_of(sample.source) == GPU]
    others = [sample for sample in samples if kind_of(sample.source) != GPU]
    steps = _steps(named) if samples else None
    if not samples:
        yield Absent(what="Samplers", reason="no reading was recorded in this launch")
    if devices:
        yield from _strips(f"Devices of {named.title}", named, devices, steps)
    elif analysis.run.header.spec.devices:
        reason = "the sampler recorded no reading of a GPU; dpdoctor reads NVIDIA's NVML"
        yield Absent(what=GPU_READINGS, reason=reason)
    if others:
        yield from _strips(f"Host of {named.title}", named, others, steps)
    yield from _counters(samples)
    yield from _unknown(samples)


def _strips(title: str, named: NamedLaunch, samples: Sequence[Sample], steps: Strip | None) -> Iterator[Block]:
    """Yield the chart of one kind of readings below the steps, memory in one of its own, and what they leave out."""
    origin_ns = named.origin_ns
    drawn = [panel for every in panels(samples, origin_ns) if (panel := _drawn(every)).curves]
    found = [(panel, *grouped(panel)) for panel in drawn]
    reasons, reason_words = throttle_strip(samples, origin_ns)
    of_memory = [item for item in found if item[0].unit == MEMORY]
    others = [item for item in found if item[0].unit != MEMORY]
    yield from _chart(title, named, steps, others, reasons=reasons, reason_words=reason_words)
    if of_memory:
        yield Fold(
            title="Memory over the run",
            blocks=tuple(_chart(f"Memory, {title[0].lower()}{title[1:]}", named, steps, of_memory)),
        )
    left_out = " ".join(said for _, _, said in found if said)
    if left_out:
        yield Paragraph(
            text="Of many sources the lowest, the middle and the highest reading of each moment are drawn. " + left_out
        )
    if reason_words and reasons is None:
        yield Paragraph(text=reason_words)


def _chart(
    title: str,
    named: NamedLaunch,
    steps: Strip | None,
    found: Sequence[_Found],
    *,
    reasons: Strip | None = None,
    reason_words: str = "",
) -> Iterator[Chart]:
    """Yield the strips of readings below that of the steps; nothing where there is neither."""
    origin_ns, ranks = named.origin_ns, _with_steps(named)
    strips = [*([steps] if steps else []), *(_strip(shown) for _, shown, _ in found), *([reasons] if reasons else [])]
    bands = unmeasured(ranks[0], ranks, origin_ns) if ranks else []
    hints = [_HINTS[panel.kind, panel.unit] for panel, _, _ in found if (panel.kind, panel.unit) in _HINTS]
    words = [_words(curve, shown.unit) for _, shown, _ in found for curve in shown.curves]
    if strips:
        yield strip_chart(
            title=title,
            strips=strips,
            shapes=[shade(begin, end) for _, begin, end in bands],
            how_to_read=" ".join([HOW_TO_READ, *hints]) + _thinned(found),
            alternative=" ".join([*_longest_step(ranks), *words, *([reason_words] if reason_words else [])]),
        )


def _drawn(panel: Panel) -> Panel:
    """Return the curves to draw: not how much there is of something, which stays as it is."""
    return replace(panel, curves=tuple(curve for curve in panel.curves if not _ALWAYS.fullmatch(curve.key)))


def _with_steps(named: NamedLaunch) -> list[Rank]:
    return [rank for rank in named.launch.ranks if rank.steps]


def _steps(named: NamedLaunch) -> Strip | None:
    """Return the strip of the steps: of each the rank's that took longest."""
    ranks, origin_ns = _with_steps(named), named.origin_ns
    longest: dict[int, tuple[int, int]] = {}
    for rank in ranks:
        for step in rank.steps:
            taken = step.duration_ns, step.begin_ns
            longest[step.step] = max(longest.get(step.step, taken), taken)
    if not longest:
        return None
    ordered = [longest[number] for number in sorted(longest)]
    durations = [duration * NS for duration, _ in ordered]
    x, y = charts.steps_with_holes([((begin - origin_ns) * NS, duration * NS) for duration, begin in ordered])
    name = "the step" if len(ranks) == 1 else "of all ranks, the longest"
    scale, unit = units.time_scale(max(durations))
    logarithmic = logarithmic_axis(durations, most_ticks=MOST_TICKS)
    curve = charts.line(name=name, x=x, y=y, unit="s", scale=1.0 if logarithmic else scale, color=charts.BLUE)
    title = "Steps, logarithmic" if logarithmic else f"Steps, {unit}"
    return Strip(title=title, traces=(curve,), keys=((charts.BLUE, name),), axis=logarithmic or {})


def _longest_step(ranks: Sequence[Rank]) -> list[str]:
    longest = max((step.duration_ns for rank in ranks for step in rank.steps), default=None)
    return [] if longest is None else [f"The longest step takes {units.seconds(longest * NS)}."]


def _strip(panel: Panel) -> Strip:
    largest = max((max(curve.known, default=0.0) for curve in panel.curves), default=0.0)
    scale, axis_unit = charts.axis_scale(panel.unit, largest)
    kind, what = _KIND_WORDS.get(panel.kind, panel.kind), _UNIT_WORDS.get(panel.unit, panel.unit)
    title = _TITLES.get((panel.kind, panel.unit), f"{kind}: {what}")
    colored = list(zip(panel.curves, charts.SERIES_COLORS, strict=False))
    return Strip(
        title=f"{title}, {axis_unit}" if axis_unit else title,
        traces=tuple(
            charts.line(name=_name(curve), x=curve.x, y=curve.y, unit=panel.unit, scale=scale, color=color)
            for curve, color in colored
        ),
        keys=tuple((color, _name(curve)) for curve, color in colored),
        axis={},
    )


def _name(curve: Curve) -> str:
    return f"{curve.source} {words_of(curve.key)}"


def _thinned(found: Sequence[_Found]) -> str:
    return charts.thinned_words(max((len(curve.y) for _, shown, _ in found for curve in shown.curves), default=0))


def _words(curve: Curve, unit: str) -> str:
    known = curve.known
    mean = amount(sum(known) / len(known), unit)
    return f"{_name(curve)}: mean {mean}, from {amount(min(known), unit)} to {amount(max(known), unit)}."


def _counters(samples: Sequence[Sample]) -> Iterator[Fold]:
    """Yield what counters gained; drawn they would only rise, and one that gained nothing says nothing."""
    found = {key: gain for key, gain in gained(samples).items() if gain[0]}
    if found:
        table = Table(
            caption="From the first reading to the last, all sources of a kind added up.",
            columns=(Column(title="Source"), Column(title="Reading"), Column(title="Gained", numeric=True)),
            rows=tuple(
                (
                    Cell(text=kind, note=units.count(number, "source") if number > 1 else ""),
                    Cell(text=words_of(key)),
                    amount_cell(value, unit_of(key)),
                )
                for (kind, key), (value, number) in found.items()
            ),
        )
        yield Fold(title="Counters", blocks=(table,))


def _unknown(samples: Sequence[Sample]) -> Iterator[Absent]:
    """Yield the readings that could not be had, those of many sources with one reason together."""
    by_reading: dict[tuple[str, str], list[str]] = {}
    for source, key, reason in unknowns(samples):
        by_reading.setdefault((key, reason), []).append(source)
    yield from (
        Absent(what=f"{key} of {_sources(sources)}", reason=reason) for (key, reason), sources in by_reading.items()
    )


def _sources(sources: Sequence[str]) -> str:
    return sources[0] if len(sources) == 1 else f"{sources[0]} and {units.count(len(sources) - 1, 'more source')}"


def result(analysis: Diagnosis) -> str:
    """Return how busy the host was while the leading mode ran."""
    focus = standing.focus(analysis.summary)
    for named in launches(analysis):
        loads = [load for sample in named.launch.samples if (load := sample.values.get("cpu_ratio")) is not None]
        if named.mode == focus and loads:
            return f"{focus}: host CPU {units.share(sum(loads) / len(loads))} busy"
    return ""


VIEW: View[Diagnosis] = View(
    name="samplers", title="Host and devices over the run", build=build, applies=is_profile, result=result
)
