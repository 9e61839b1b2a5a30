"""How much memory each rank took at most: its process or its GPU, and by the trace what torch's allocator held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpdoctor.analysis import Diagnosis, ModeSummary
from dpdoctor.report.blocks import Absent, Block, Cell, Column, OfMode, Table, View
from dpdoctor.report.text import amount, amount_cell
from dpdoctor.report.traces.traced import TracedMode, is_trace_run, not_measured, traced_modes
from dpdoctor.report.words import standing

# More rows than these nobody reads; run.json has every rank.
MOST_RANKS = 64


def build(analysis: Diagnosis) -> Sequence[Block]:
    """Return by mode the peaks of its ranks, and those that the traces tell; why others are unknown."""
    traced = {mode.mode: mode for mode in traced_modes(analysis)}
    blocks: list[Block] = []
    for name, mode in standing.shown_modes(analysis.summary).items():
        found = [*_of_ranks(mode), *(_of_trace(traced[name]) if name in traced else ())]
        blocks += found if is_trace_run(analysis) else [OfMode(mode=name, blocks=tuple(found))]
    return blocks or [Absent(what="Memory", reason="no mode was measured")]


def _of_ranks(mode: ModeSummary) -> Iterator[Block]:
    known = [rank for rank in mode.ranks if rank.peak_memory_bytes is not None]
    fullest = sorted(known, key=lambda rank: rank.peak_memory_bytes or 0, reverse=True)[:MOST_RANKS]
    if known:
        held = "by torch's allocator" if any(rank.device_type == "cuda" for rank in known) else "by the process"
        yield Table(
            caption=f"Peak memory of each rank, held {held}; the fullest first.",
            columns=(Column(title="Rank", numeric=True), Column(title="Device"), Column(title="Peak", numeric=True)),
            rows=tuple(
                (
                    Cell(text=str(rank.rank), sort=rank.rank),
                    Cell(text=rank.device or "unknown"),
                    amount_cell(rank.peak_memory_bytes, "bytes"),
                )
                for rank in fullest
            ),
        )


def _of_trace(mode: TracedMode) -> Iterator[Block]:
    known = {name: device for name, device in mode.devices if device.peak_allocated_bytes is not None}
    if known:
        yield Table(
            caption="Peak memory in the trace, from the events of PyTorch's allocator.",
            columns=(
                Column(title="Rank"),
                Column(title="Allocated", numeric=True),
                Column(title="Reserved", numeric=True),
            ),
            rows=tuple(
                (
                    Cell(text=name, note=device.name),
                    amount_cell(device.peak_allocated_bytes or 0, "bytes"),
                    amount_cell(device.peak_reserved_bytes, "bytes"),
                )
                for name, device in known.items()
            ),
        )
    yield from not_measured(mode, lambda what: what == "memory")


def result(analysis: Diagnosis) -> str:
    """Return the peak of the fullest rank over all modes."""
    peaks = [
        (rank.peak_memory_bytes, name)
        for name, mode in standing.shown_modes(analysis.summary).items()
        for rank in mode.ranks
        if rank.peak_memory_bytes is not None
    ]
    if not peaks:
        return ""
    most, mode = max(peaks)
    return f"at most {amount(most, 'bytes')} per rank ({mode})"


VIEW: View[Diagnosis] = View(
    name="peak-memory",
    title="Peak memory",
    build=build,
    result=result,
    is_half=True,
)
