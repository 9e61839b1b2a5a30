"""Modes of runs of which a step was counted."""

from __future__ import annotations

from msgspec.structs import replace

from dpdoctor.analysis import Analysis, HostSync, ModeSummary, analyse
from dpdoctor.records import Collective, Counters, InputTensor
from tests.builders import records

COUNTERS = Counters(
    operators=700,
    collectives={"all_reduce": Collective(count=2, num_bytes=1000)},
    inputs=(InputTensor(dtype="float32", shape=(32, 3), num_bytes=384),),
    syncs=(HostSync(call="item", line="/base/a.py:10", count=1, code="total += loss.item()"),),
    micro_batches=1,
    allocations=50,
)
PEAK = 400_000_000


def run(counters: Counters | None = COUNTERS, *, peak: int | None = PEAK, device: str = "cpu") -> Analysis:
    """Return a run of ddp on two ranks, both counted alike."""
    ranks = [
        records.even_rank(
            100, num_windows=3, index=index, world_size=2, counters=counters, peak_memory_bytes=peak, device=device
        )
        for index in range(2)
    ]
    return analyse(records.run({"ddp": [records.launch(*ranks, mode="ddp")]}, {"ddp": 2}))


def mode(counters: Counters | None = COUNTERS, *, peak: int | None = PEAK, device: str = "cpu") -> ModeSummary:
    """Return that run's mode."""
    return run(counters, peak=peak, device=device).summary.modes["ddp"]


def other(**fields: object) -> Counters:
    """Return counters that differ from COUNTERS in these fields."""
    return replace(COUNTERS, **fields)
