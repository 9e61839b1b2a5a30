"""Launches whose loader is recorded batch by batch. Times are given in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from dpdoctor.loading import IN_PROCESS, BatchRecord
from dpdoctor.records import Conversion, Launch, Loader, Rank
from tests.builders import records
from tests.builders.specs import MS

STEP_MS = 100
STEPS_PER_WINDOW = 4


def loader(**fields: Any) -> Loader:
    """Return a loader without workers."""
    record = Loader(
        line="train.py:10",
        dataset="Digits",
        sampler="RandomSampler",
        batch_size=32,
        num_workers=0,
        num_batches=1000,
        rule="whole",
    )
    return replace(record, **fields)


def batch(step: int, *, asked: float, wait: float, **fields: Any) -> BatchRecord:
    """Return batch number `step` of the first iteration, asked for in that step at `asked` ms.

    In the fields `fetch_begin`, `fetch`, `cpu` and `collate` ms stand for ns; the fetch fills the wait unless given.
    """
    times = {"fetch_begin": asked, "fetch": wait, "cpu": wait, "collate": 0.0}
    times |= {name: fields.pop(name) for name in tuple(fields) if name in times}
    record = BatchRecord(
        loader=0,
        iteration=0,
        batch=step,
        worker=IN_PROCESS,
        step=step,
        asked_ns=round(asked * MS),
        wait_ns=round(wait * MS),
        **{f"{name}_ns": round(ms * MS) for name, ms in times.items()},
    )
    return replace(record, **fields)


def rank(batches: Sequence[BatchRecord], *, num_windows: int = 2, **fields: Any) -> Rank:
    """Return a rank with windows of four steps of 100 ms each, numbered from 1, one after another from 0 on.

    `loaders` and more fields of its RankRecord by keyword; step 1 begins at 0 ms.
    """
    loaders = fields.pop("loaders", (loader(),))
    steps, windows = [], []
    for number in range(1, num_windows + 1):
        first = (number - 1) * STEPS_PER_WINDOW
        windows.append(
            records.window(
                STEPS_PER_WINDOW * STEP_MS,
                window=number,
                begin_ns=first * STEP_MS * MS,
                end_ns=(first + STEPS_PER_WINDOW) * STEP_MS * MS,
            )
        )
        steps += [
            records.step(STEP_MS, window=number, step=first + i + 1, begin_ns=(first + i) * STEP_MS * MS)
            for i in range(STEPS_PER_WINDOW)
        ]
    made = records.rank(steps, windows, conversion=Conversion(loaders=loaders), **fields)
    return replace(made, batches=tuple(batches))


def even_batches(num: int, **fields: Any) -> list[BatchRecord]:
    """Return one batch per step, each asked for when its step begins and waited for 40 ms."""
    return [batch(step, asked=(step - 1) * STEP_MS, **{"wait": 40.0, **fields}) for step in range(1, num + 1)]


def launch(*ranks: Rank, **fields: Any) -> Launch:
    """Return a launch of these ranks."""
    return records.launch(*ranks, **fields)
