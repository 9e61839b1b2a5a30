"""Memory over time by what it holds: parameters, gradients, state of the optimizer, and the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from dpdoctor import units
from dpdoctor.analysis import FULL, Diagnosis, MemoryRecord, Rank
from dpdoctor.analysis.base.launches import shown
from dpdoctor.report.blocks import Absent, Block, Cell, Chart, Column, Fold, OfMode, Table, View
from dpdoctor.report.drawing import charts
from dpdoctor.report.launches import NamedLaunch
from dpdoctor.report.text import amount_cell, mode_label
from dpdoctor.report.traces.traced import is_profile
from dpdoctor.report.words import standing

NS = 1e-9
OWN_KINDS = ("warmup", "measure")
UNKNOWN_ON_CPU = "torch counts neither on the CPU"


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What memory is taken by; `of` returns its bytes, None where they were not measured."""

    name: str
    color: str
    of: Callable[[MemoryRecord], int | None]
    note: str


def _state(record: MemoryRecord) -> int:
    return record.parameters_bytes + record.gradients_bytes + record.optimizer_bytes


def _above(
    most: Callable[[MemoryRecord], int | None], below: Callable[[MemoryRecord], int]
) -> Callable[..., int | None]:
    """Return what `most` has more than `below`, at least nothing."""

    def of(record: MemoryRecord) -> int | None:
        value = most(record)
        return None if value is None else max(0, value - below(record))

    return of


def _peak(record: MemoryRecord) -> int:
    return max(_state(record), record.peak_allocated_bytes or 0)


STATE = (
    Kind(
        name="parameters",
        color=charts.BLUE,
        of=lambda record: record.parameters_bytes,
        note="the model and its buffers",
    ),
    Kind(
        name="gradients",
        color=charts.SKY,
        of=lambda record: record.gradients_bytes,
        note="not set to None after the update",
    ),
    Kind(
        name="optimizer",
        color=charts.GREEN,
        of=lambda record: record.optimizer_bytes,
        note="its state, such as momenta",
    ),
)
ACTIVATIONS = Kind(
    name="activations",
    color=charts.ORANGE,
    of=_above(lambda record: record.peak_allocated_bytes, _state),
    note="and temporary: the most that was allocated so far, less the above",
)
RESERVED = Kind(
    name="reserved",
    color=charts.GREY,
    of=_above(lambda record: record.reserved_bytes, _peak),
    note="held by torch's allocator beyond that",
)
PROCESS = Kind(
    name="rest of the process",
    color=charts.GREY,
    of=_above(lambda record: record.resident_bytes, _state),
    note="Python, libraries, data and activations",
)


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode the memory of the rank that holds most, over the windows without experiment."""
    blocks: list[Block] = []
    for mode in standing.shown_modes(analysis.summary):
        named = NamedLaunch(mode=mode, title=mode_label(mode), launch=shown(analysis.run.modes[mode]))
        blocks.append(OfMode(mode=mode, blocks=tuple(_of_launch(named))))
    return blocks or [Absent(what="Memory over time", reason="no mode was measured")]


def _of_launch(named: NamedLaunch) -> Iterator[Block]:
    ranks = {rank.index: found for rank in named.launch.ranks if (found := _records(rank))}
    if not ranks:
        yield Absent(what="Memory over time", reason="no rank recorded it")
        return
    fullest = max(ranks, key=lambda index: max(map(_total, ranks[index])))
    records = ranks[fullest]
    kinds = _kinds(records[-1])
    table = _table(records, kinds, fullest)
    if len(records) > 1:
        yield _chart(named, records, kinds, fullest, len(ranks))
        yield Fold(title="Memory by kind", blocks=(table,))
    else:
        yield table


def _records(rank: Rank) -> list[MemoryRecord]:
    """Return what was recorded where windows end in which the script is by itself: no experiment, no profiler."""
    own = {window.window for window in rank.windows if window.ablation == FULL and window.kind in OWN_KINDS}
    return [record for record in rank.memory if record.window in own]


def _total(record: MemoryRecord) -> int:
    return record.reserved_bytes if record.reserved_bytes is not None else record.resident_bytes or _state(record)


def _kinds(record: MemoryRecord) -> tuple[Kind, ...]:
    if record.reserved_bytes is not None:
        return (*STATE, ACTIVATIONS, RESERVED)
    return (*STATE, PROCESS) if record.resident_bytes is not None else STATE


def _chart(
    named: NamedLaunch, records: Sequence[MemoryRecord], kinds: Sequence[Kind], rank: int, num_ranks: int
) -> Chart:
    scale, unit = units.size_scale(max(sum(kind.of(record) or 0 for kind in kinds) for record in records))
    x = [(record.at_ns - named.origin_ns) * NS for record in records]
    traces = [
        {
            **charts.line(
                name=kind.name,
                x=x,
                y=[float(kind.of(record) or 0) for record in records],
                unit="bytes",
                scale=scale,
                color=kind.color,
            ),
            "stackgroup": "memory",
        }
        for kind in kinds
    ]
    which = f" Rank {rank}, the fullest of {units.whole(num_ranks)}." if num_ranks > 1 else ""
    return Chart(
        title=f"Memory over time, {named.title}",
        traces=tuple(traces),
        layout=charts.time_layout(unit),
        height=charts.height(65, num_names=len(kinds)),
        how_to_read=f"What rises all the time leaks; the state of training should be flat after warm-up.{which}",
        alternative=_words(records, kinds),
    )


def _words(records: Sequence[MemoryRecord], kinds: Sequence[Kind]) -> str:
    first, last = records[0], records[-1]
    return " ".join(
        f"{kind.name.capitalize()}: {units.size(kind.of(first) or 0)}, at last {units.size(kind.of(last) or 0)}."
        for kind in kinds
    )


def _table(records: Sequence[MemoryRecord], kinds: Sequence[Kind], rank: int) -> Table:
    """Return what each kind holds; activations are unknown on the CPU, and so is what an allocator reserves."""
    rows = [
        (
            Cell(text=kind.name),
            amount_cell(kind.of(records[-1]), "bytes"),
            amount_cell(max(kind.of(record) or 0 for record in records), "bytes"),
            Cell(text=kind.note),
        )
        for kind in kinds
    ]
    if RESERVED not in kinds:
        names = f"{ACTIVATIONS.name}, {RESERVED.name}"
        rows.append((Cell(text=names), Cell(text="unknown"), Cell(text="unknown"), Cell(text=UNKNOWN_ON_CPU)))
    return Table(
        caption=f"Memory of rank {rank} by kind, between two steps; from {units.count(len(records), 'window edge')}.",
        columns=(
            Column(title="Kind"),
            Column(title="At last", numeric=True),
            Column(title="At most", numeric=True),
            Column(title="What it is"),
        ),
        rows=tuple(rows),
    )


VIEW: View[Diagnosis] = View(
    name="memory_over_time", title="Memory over time", build=build, applies=is_profile, is_half=True
)
