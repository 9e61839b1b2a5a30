"""The first screen of a run made of traces alone: the answer, what could not be read, and every trace in one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpdoctor.analysis import Diagnosis
from dpdoctor.report.blocks import Block, Callout, Cell, Column, Table, View
from dpdoctor.report.text import NOTHING, by_reason, name_cell, whole_cell
from dpdoctor.report.traces.traced import TracedMode, TracedRank, damage, device_words, is_trace_run, traced_modes
from dpdoctor.report.traces.words import trace_headline, unreadable
from dpdoctor.report.words.first_screen import first_screen, ranking

COLUMNS = (
    Column(title="Rank"),
    Column(title="Devices"),
    Column(title="Host"),
    Column(title="Backend"),
    Column(title="World size", numeric=True),
    Column(title="Events", numeric=True),
    Column(title="Steps by"),
    Column(title="File"),
)
LONGEST_NAME = 36


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return the verdict, the traces that could not be read or only in part, the costliest findings and a table."""
    blocks: list[Block] = [
        trace_headline(analysis),
        *_unreadable(analysis),
        *ranking(first_screen(analysis.summary)),
    ]
    for mode in traced_modes(analysis):
        blocks += [*damage(mode), _table(mode), *_notes(mode)]
    return blocks


def _unreadable(analysis: Diagnosis) -> Iterator[Callout]:
    for clause, reasons in unreadable(analysis.summary):
        yield Callout(tone="bad", title=clause, text="The figures on this page are without them.", lines=reasons)


def _table(mode: TracedMode) -> Table:
    return Table(caption="What was read.", columns=COLUMNS, rows=tuple(_row(rank) for rank in mode.ranks))


def _row(rank: TracedRank) -> tuple[Cell, ...]:
    digest = rank.digest
    names = by_reason((device_words(device), device.name) for device in digest.devices if device.whole.total_ns)
    devices = [which if name in ("", which) else f"{which}: {name}" for name, which in names.items()]
    return (
        Cell(text=rank.name),
        name_cell(", ".join(devices) or NOTHING, LONGEST_NAME),
        name_cell(digest.host or NOTHING, LONGEST_NAME),
        name_cell(digest.backend or NOTHING, LONGEST_NAME),
        whole_cell(digest.world_size, missing=NOTHING),
        whole_cell(digest.num_events),
        Cell(text=digest.step_source),
        name_cell(digest.source, LONGEST_NAME),
    )


def _notes(mode: TracedMode) -> Iterator[Callout]:
    """Yield each remark of the reader once, with the traces that it holds for."""
    remarks = by_reason((rank.name, note) for rank in mode.ranks for note in rank.digest.notes)
    yield from (Callout(tone="muted", title=names, text=note) for note, names in remarks.items())


VIEW: View[Diagnosis] = View(name="traces", title="", build=build, applies=is_trace_run)
