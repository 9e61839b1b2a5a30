"""Where the time of each device goes: five parts that add up, and what it waits for while idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from dpdoctor import units
from dpdoctor.analysis import Diagnosis
from dpdoctor.analysis.base.traces import MAY_HOLD, CommonSteps
from dpdoctor.analysis.breakdown import Spent, spent, together
from dpdoctor.digest import HOST, PHASES, DeviceDigest
from dpdoctor.report.blocks import Absent, Block, Cell, Chart, Column, Fold, Grid, Note, Paragraph, Table, View
from dpdoctor.report.drawing import charts
from dpdoctor.report.drawing.charts import MOST_ROWS, Part, StackedBar, share_bars
from dpdoctor.report.text import NOTHING, amount_cell, figure_text
from dpdoctor.report.traces.traced import TracedMode, by_mode, damage, is_trace_run, not_measured, traced_modes
from dpdoctor.report.traces.words import PART_WORDS, cause_words, seconds, time_cell

# More rows than these nobody reads.
MOST_DEVICES = 128
PART_COLORS = {
    "compute": (charts.BLUE, charts.LIGHT_INK),
    "exposed_comm": (charts.VERMILION, charts.LIGHT_INK),
    "h2d": (charts.ORANGE, charts.DARK_INK),
    "copy": (charts.PURPLE, charts.DARK_INK),
    "idle": (charts.GREY, charts.DARK_INK),
}
PHASE_COLORS = {
    "forward": (charts.BLUE, charts.LIGHT_INK),
    "backward": (charts.SKY, charts.DARK_INK),
    "optimizer": (charts.GREEN, charts.LIGHT_INK),
    "other": (charts.GREY, charts.DARK_INK),
}
CAUSE_COLORS = (
    (charts.VERMILION, charts.LIGHT_INK),
    (charts.ORANGE, charts.DARK_INK),
    (charts.SKY, charts.DARK_INK),
    (charts.BLUE, charts.LIGHT_INK),
    (charts.GREEN, charts.LIGHT_INK),
    (charts.PURPLE, charts.DARK_INK),
)
OTHER_CAUSES = Part(key="other causes", name="other causes", colors=(charts.GREY, charts.DARK_INK))
MAY_HOLD_WORDS = {**PART_WORDS, "compute": f"compute ({MAY_HOLD})"}
COLUMNS = (
    Column(title="Rank"),
    Column(title="Traced", numeric=True),
    Column(title="Compute", numeric=True),
    Column(title="Exposed comm.", numeric=True),
    Column(title="To device", numeric=True),
    Column(title="Other copies", numeric=True),
    Column(title="Idle", numeric=True),
    Column(title="Overlap", numeric=True),
    Column(title="Launch delay", numeric=True),
    Column(title="Launches", numeric=True),
)
MEANING = (
    "What runs beside compute counts as compute; then come communication, copies to the device, other copies, and "
    "idle is the rest. Overlap is the share of communication that ran beside compute. Launch delay is the time from a "
    "launch to the begin of its kernel: microseconds mean that the device waits for the CPU, milliseconds that the CPU "
    "is ahead and the device is what is busy."
)
ON_CPU = (
    "Without a GPU, compute is the operators on the training thread and communication the backend's threads, "
    "which take the same cores."
)


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode bars of the parts, of idle by cause and of the phases, and the table."""
    return by_mode(analysis, "Device time", lambda mode: _mode(mode, alone=is_trace_run(analysis)))


def _mode(mode: TracedMode, *, alone: bool) -> Sequence[Block]:
    missing = [*_unknown_communication(mode), *not_measured(mode, lambda what: what != "memory")]
    troubles = [] if alone else damage(mode)
    if not mode.devices:
        return [*troubles, *missing]
    common = mode.traces.common
    devices = _least_computing(mode, common)
    found = {name: spent([device], common) for name, device in devices.items()}
    on_cpu = any(device.index == HOST for _, device in mode.devices)
    return [
        *troubles,
        *([] if alone else [_source(mode, common)]),
        *_order(mode),
        Grid(blocks=(_parts(found, "The time of each device"), *_idle(found, together(mode.traces)))),
        Fold(
            title="Busy by phase, overlap and launch delay of each device",
            blocks=(*_phases(found), _table(devices, found)),
        ),
        Note(text=f"{MEANING} {ON_CPU}" if on_cpu else MEANING),
        *missing,
    ]


def _unknown_communication(mode: TracedMode) -> Iterator[Absent]:
    reason = mode.traces.why_unknown
    if reason is not None:
        yield Absent(what="Communication", reason=reason)


def _least_computing(mode: TracedMode, common: CommonSteps) -> dict[str, DeviceDigest]:
    """Return the devices to show: all or, of many, those that compute for the least share of their time, first."""
    if len(mode.devices) <= MOST_ROWS:
        return dict(mode.devices)
    ordered = sorted(mode.devices, key=lambda item: spent([item[1]], common).ratio("compute"))
    return dict(islice(ordered, MOST_DEVICES))


def _order(mode: TracedMode) -> Iterator[Paragraph]:
    """Yield which devices come first, and how many are left out, where they are many."""
    number = len(mode.devices)
    if number > MOST_ROWS:
        left_out = f"; the table has {MOST_DEVICES} of {units.whole(number)}" if number > MOST_DEVICES else ""
        yield Paragraph(text=f"Devices that compute for the least share of their time come first{left_out}.")


def _source(mode: TracedMode, common: CommonSteps) -> Paragraph:
    """Return which figures are the trace's and which are not."""
    cost = mode.summary.profiler_overhead
    left_out = f": {common.left_out}" if common.left_out else ""
    taken = "" if cost.value is None else f" A traced step takes {figure_text(cost)} of an untraced one here."
    slower = " The profiler slows such a step, the host's part most." if cost.value is None or cost.value > 1 else ""
    return Paragraph(
        text=f"Shares are of traced steps{left_out}.{taken}{slower} Take durations from the measured windows."
    )


def _whole(found: Mapping[str, Spent]) -> str:
    return "the traced steps" if all(one.num_steps for one in found.values()) else "what was traced"


def _parts(found: Mapping[str, Spent], title: str) -> Chart:
    return share_bars(
        title=title,
        whole=_whole(found),
        rows=[_row(name, one, one.parts_ns) for name, one in found.items()],
        parts=_colored(found),
        how_to_read="Communication is only what no compute hides; idle is split by cause below.",
    )


def _colored(found: Mapping[str, Spent]) -> list[Part]:
    """Return the parts with their colours; only communication may be unknown, and then it is in compute."""
    known = {part for one in found.values() for part in one.parts_ns}
    words = PART_WORDS if all(one.knows_communication for one in found.values()) else MAY_HOLD_WORDS
    return [Part(key=key, name=name, colors=PART_COLORS[key]) for key, name in words.items() if key in known]


def _idle(found: Mapping[str, Spent], pooled: Spent) -> Iterator[Chart]:
    """Yield idle time by cause: the largest causes, the others together."""
    by_size = [cause for cause, time_ns in Counter(pooled.idle_by).most_common() if time_ns]
    shown, others = by_size[: len(CAUSE_COLORS)], by_size[len(CAUSE_COLORS) :]
    if not shown:
        return
    rows = [
        _row(name, one, {**one.idle_by, OTHER_CAUSES.key: sum(one.idle_by.get(cause, 0) for cause in others)})
        for name, one in found.items()
    ]
    parts = [
        Part(key=cause, name=cause_words(cause), colors=colors)
        for cause, colors in zip(shown, CAUSE_COLORS, strict=False)
    ]
    yield share_bars(
        title="Idle, by what the host did meanwhile",
        whole=_whole(found),
        rows=rows,
        parts=[*parts, OTHER_CAUSES] if others else parts,
        how_to_read="The idle part of the bars above. An empty row is a device that never idled.",
        is_full=False,
    )


def _phases(found: Mapping[str, Spent]) -> Iterator[Chart]:
    """Yield busy time by the phase that launched it, where any device says it."""
    if not any(one.phases_ns for one in found.values()):
        return
    yield share_bars(
        title="Busy, by the phase that launched it",
        whole=_whole(found),
        rows=[_row(name, one, one.phases_ns) for name, one in found.items()],
        parts=[Part(key=phase, name=phase, colors=PHASE_COLORS[phase]) for phase in PHASES],
        how_to_read="The busy part of each device; what is missing to the full width is idle.",
    )


def _row(name: str, one: Spent, parts_ns: Mapping[str, int]) -> StackedBar:
    steps = max(1, one.num_steps)
    per = " per step" if one.num_steps else ""
    return StackedBar(
        name=name,
        ratios={key: value / one.total_ns for key, value in parts_ns.items()},
        amounts={key: f"{seconds(value / steps)}{per}" for key, value in parts_ns.items()},
    )


def _table(devices: Mapping[str, DeviceDigest], found: Mapping[str, Spent]) -> Table:
    return Table(
        caption="Shares of each device's traced time; times are with the profiler running, launches are per step.",
        columns=COLUMNS,
        rows=tuple(_cells(name, devices[name], one) for name, one in found.items()),
    )


def _cells(name: str, device: DeviceDigest, one: Spent) -> tuple[Cell, ...]:
    steps = max(1, one.num_steps)
    stretch = f"mean of {units.count(steps, 'step')}" if one.num_steps else "the whole trace"
    overlap = one.overlap_ratio
    return (
        Cell(text=name, note=device.name),
        time_cell(one.total_ns / steps, note=stretch),
        *(_share(one, part) for part in PART_WORDS),
        amount_cell(overlap, "ratio", missing=NOTHING if one.knows_communication else "unknown"),
        _launch_delay(device),
        _launches(device),
    )


def _share(one: Spent, part: str) -> Cell:
    if part not in one.parts_ns:
        return Cell(text="unknown")
    is_mixed = part == "compute" and not one.knows_communication
    return amount_cell(one.ratio(part), "ratio", note=MAY_HOLD if is_mixed else "")


def _launch_delay(device: DeviceDigest) -> Cell:
    delay = device.launch_delay
    if delay is None:
        return Cell(text=NOTHING)
    return time_cell(delay.p50_ns, note=f"90% within {seconds(delay.p90_ns)}")


def _launches(device: DeviceDigest) -> Cell:
    """Return the kernels launched per step."""
    per_step = device.launches / len(device.steps) if device.launches and device.steps else None
    return amount_cell(per_step, "", missing=NOTHING)


def result(analysis: Diagnosis) -> str:
    """Return of traces alone the shares of all devices' time."""
    for mode in traced_modes(analysis) if is_trace_run(analysis) else ():
        found = together(mode.traces)
        return ", ".join(
            f"{PART_WORDS[part]} {units.share(found.ratio(part))}" for part in found.parts_ns if found.ratio(part)
        )
    return ""


VIEW: View[Diagnosis] = View(
    name="breakdown",
    title="Device time breakdown (trace)",
    build=build,
    result=result,
    is_half=True,
)
