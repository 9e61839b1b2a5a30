"""The kernels and operators that time goes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dpdoctor import units
from dpdoctor.analysis import Diagnosis
from dpdoctor.digest import Digest, NamedTime
from dpdoctor.report.blocks import Absent, Block, Cell, Column, Note, Table, View
from dpdoctor.report.text import NOTHING, amount_cell, clipped, name_cell, whole_cell
from dpdoctor.report.traces.traced import TracedMode, by_mode, focused, has_traces
from dpdoctor.report.traces.words import time_cell

MOST_ROWS = 15
# A kernel of C++ templates may have a name of thousands of characters.
LONGEST_NAME = 72
MEANING = (
    "Times are of the whole trace and of all ranks together. An operator's own time leaves out those that it called; "
    "with a GPU it is the time to launch, not to compute."
)


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode the kernels and operators with most time."""
    return by_mode(analysis, "Kernels and operators", _mode)


def _mode(mode: TracedMode) -> Sequence[Block]:
    blocks: list[Block] = []
    kernels = _summed(mode, lambda digest: digest.kernels)
    operators = _summed(mode, lambda digest: digest.operators)
    if kernels:
        blocks.append(_kernels(kernels))
    else:
        blocks.append(Absent(what="Kernels", reason="the traces hold no work of a device"))
    blocks.append(_operators(operators) if operators else Absent(what="Operators", reason="the traces hold none"))
    return [*blocks, Note(text=MEANING)]


def _summed(mode: TracedMode, pick: Callable[[Digest], Iterable[NamedTime]]) -> list[NamedTime]:
    """Return the names of all ranks and devices together."""
    found: dict[str, NamedTime] = {}
    for row in (row for rank in mode.ranks for row in pick(rank.digest)):
        known = found.get(row.name)
        found[row.name] = row if known is None else _both(known, row)
    return list(found.values())


def _both(one: NamedTime, other: NamedTime) -> NamedTime:
    return NamedTime(
        name=one.name,
        count=one.count + other.count,
        total_ns=one.total_ns + other.total_ns,
        self_ns=None if one.self_ns is None else one.self_ns + (other.self_ns or 0),
    )


def _kernels(rows: Sequence[NamedTime]) -> Table:
    longest = sorted(rows, key=lambda row: row.total_ns, reverse=True)
    total = sum(row.total_ns for row in rows)
    return Table(
        caption=f"Kernels and copies with most time{_which(rows)}. Several may run at a time.",
        columns=(
            Column(title="Kernel"),
            Column(title="Calls", numeric=True),
            Column(title="Total", numeric=True),
            Column(title="Share", numeric=True),
            Column(title="Mean", numeric=True),
        ),
        rows=tuple(
            (name_cell(row.name, LONGEST_NAME), *_counts(row), _share(row.total_ns, total), _mean(row))
            for row in longest[:MOST_ROWS]
        ),
    )


def _operators(rows: Sequence[NamedTime]) -> Table:
    longest = sorted(rows, key=lambda row: row.self_ns or 0, reverse=True)
    total = sum(row.self_ns or 0 for row in rows)
    return Table(
        caption=f"Operators by self time{_which(rows)}, with their share of all self time.",
        columns=(
            Column(title="Operator"),
            Column(title="Calls", numeric=True),
            Column(title="Total", numeric=True),
            Column(title="Self", numeric=True),
            Column(title="Share", numeric=True),
        ),
        rows=tuple(
            (
                name_cell(row.name, LONGEST_NAME),
                *_counts(row),
                time_cell(row.self_ns or 0),
                _share(row.self_ns or 0, total),
            )
            for row in longest[:MOST_ROWS]
        ),
    )


def _which(rows: Sequence[NamedTime]) -> str:
    return f", the first {MOST_ROWS}" if len(rows) > MOST_ROWS else ""


def _counts(row: NamedTime) -> tuple[Cell, Cell]:
    return whole_cell(row.count), time_cell(row.total_ns)


def _share(part: int, total: int) -> Cell:
    return amount_cell(part / total if total else None, "ratio", missing=NOTHING)


def _mean(row: NamedTime) -> Cell:
    return time_cell(row.total_ns / row.count) if row.count else Cell(text=NOTHING)


def result(analysis: Diagnosis) -> str:
    """Return the kernel, or else the operator, with the largest share of the leading mode's time."""
    for mode in focused(analysis):
        kernels = {row.name: row.total_ns for row in _summed(mode, lambda digest: digest.kernels)}
        operators = {row.name: row.self_ns or 0 for row in _summed(mode, lambda digest: digest.operators)}
        times, of = (kernels, "kernel") if kernels else (operators, "operator")
        if sum(times.values()):
            first = max(times, key=lambda name: times[name])
            return f"{mode.mode}: {clipped(first, 40)} {units.share(times[first] / sum(times.values()))} of {of} time"
    return ""


VIEW: View[Diagnosis] = View(
    name="kernels", title="Kernels and operators", build=build, applies=has_traces, result=result, is_half=True
)
