"""Runs of several launches, as `dpdoctor profile --repeat` leaves them, of steps that last what a test says."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dpdoctor.gate.recorded import Recorded, RecordedMode, recorded
from dpdoctor.records import (
    Collective,
    Conversion,
    Counters,
    EventRecord,
    InputTensor,
    Launch,
    Loader,
    Rank,
    Run,
    Sample,
)
from tests.builders import records
from tests.builders import specs as builders

MS, SECOND = 1_000_000, 1_000_000_000
COUNTERS = Counters(
    operators=700,
    collectives={"all_reduce": Collective(count=2, num_bytes=1000)},
    inputs=(InputTensor(dtype="float32", shape=(32, 3), num_bytes=384),),
)
LOADER = Loader(
    line="train.py:9",
    dataset="Digits",
    sampler="RandomSampler",
    batch_size=32,
    num_workers=0,
    num_batches=200,
    rule="per-device",
)
# As many windows of as many steps; a window every second, from the first second on.
WINDOWS, STEPS = 4, 8


def rank(
    ms: float,
    index: int = 0,
    *,
    batch: int = 32,
    events: Sequence[EventRecord] = (),
    last_window: float = 1.0,
    **fields: object,
) -> Rank:
    """Return one of two ranks, of steps that all last the same; more fields of its RankRecord by keyword.

    `last_window`: how many times as long they last in the last window.
    """
    numbers = range(1, WINDOWS + 1)
    durations = {number: ms * (last_window if number == WINDOWS else 1.0) for number in numbers}
    steps = [
        records.step(durations[number], window=number, samples_drawn=batch, samples_entered=batch)
        for number in numbers
        for _ in range(STEPS)
    ]
    windows = [
        records.window(
            duration * STEPS, window=n, begin_ns=n * SECOND, end_ns=n * SECOND + round(duration * STEPS * MS)
        )
        for n, duration in durations.items()
    ]
    known = {"counters": COUNTERS, "peak_memory_bytes": 400_000_000, "conversion": Conversion(loaders=(LOADER,))}
    built = records.rank(steps, windows, index=index, world_size=2, **{**known, **fields})
    return replace(built, events=tuple(events))


def launch(
    ms: float, number: int = 1, *, samples: Sequence[Sample] = (), status: str = "ok", **fields: object
) -> Launch:
    """Return a launch of ddp on two ranks; `rank`'s fields by keyword."""
    ranks = [rank(ms, index, **fields) for index in range(2)]  # type: ignore[arg-type]
    reason = None if status == "ok" else "rank 1: the script raised ValueError: planted"
    built = records.launch(*ranks, mode="ddp", number=number, status=status, reason=reason)
    return replace(built, samples=tuple(samples))


def run(*launches: Launch, script: str = "/home/me/train.py") -> Run:
    """Return a run of ddp with these launches."""
    return builders.run({builders.mode_spec("ddp", 2): launches}, script=script)


def of(*ms: float) -> Recorded:
    """Return what a gate keeps of a run with a launch for each of these step times."""
    return recorded(run(*(launch(value, number) for number, value in enumerate(ms, 1))))


def mode(recorded: Recorded) -> RecordedMode:
    """Return the mode that the runs here have."""
    return recorded.modes["ddp"]


def host(second: float, **values: float) -> Sample:
    """Return a reading of the host, so long after the clock began; the windows are measured from 1 s on."""
    return Sample(at_ns=round(second * SECOND), source="host", values=values)
