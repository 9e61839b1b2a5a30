"""The script's own dataset in a worker, for a moment and apart from training.

While it fetches, a worker holds its interpreter's lock, which moving a batch out of it needs, too. Each slows the
other, by how much depends on what the dataset calls. The script's sampler and random numbers have no part in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from dpdoctor.worker.data.apart import ApartLoader, made_up
from dpdoctor.worker.data.fetches import UNKNOWN
from dpdoctor.worker.data.queued import CoreQueue
from dpdoctor.worker.data.workers import FORKING, Workers

BATCHES = 12
ROUNDS = 4
# Fewer say too little.
LEAST_PAIRS = 5
LIMIT_S = 3.0
# In what torch says of a worker that raised, and of one that died.
_SIGNS = ("in DataLoader worker process", "exited unexpectedly")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Medians in ns. `failure`: what the dataset raised in a worker, then nothing else is known.

    Attributes:
        slowed_ns: how much longer a fetch takes while the batch before it is moved out of the worker.
        delayed_ns: how much longer moving a batch takes while the worker fetches the next.
    """

    slowed_ns: int = 0
    delayed_ns: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class _Moved:
    """One batch, without waits for a core: its fetch, and from its end until the training thread had the batch.

    Where the batch was there before it was asked for, from then on: what waits for its turn is not moved.
    """

    fetch_ns: int
    move_ns: int


def measure(loader: DataLoader[Any], clock: Callable[[], int], limit_s: float) -> Trial | None:
    """Return how fetching with a loader's dataset and moving its batches slow each other; None: it could not be tried.

    The same batches are fetched with the worker idle whenever one is moved and with it at work, turn by turn.
    """
    batches = made_up(loader, BATCHES)
    pairs: list[tuple[_Moved, _Moved]] = []
    for _ in range(ROUNDS if batches else 0):
        try:
            alone, beside = (_fetch(loader, batches, ahead, clock, limit_s / (2 * ROUNDS)) for ahead in (1, 2))
        except Exception as error:  # noqa: BLE001 - a dataset of the script's may raise anything
            return _failed(error)
        # The first in a worker pays for what is lazy; the last has none beside it.
        pairs += list(zip(alone, beside, strict=False))[1:-1]
    if len(pairs) < LEAST_PAIRS:
        return None
    return Trial(
        slowed_ns=max(0, int(statistics.median(b.fetch_ns - a.fetch_ns for a, b in pairs))),
        delayed_ns=max(0, int(statistics.median(b.move_ns - a.move_ns for a, b in pairs))),
    )


def _failed(error: Exception) -> Trial | None:
    """Return what a worker raised or how it ended, in a line; None: it was only slow, or could not be forked."""
    text = str(error).strip()
    if not any(sign in text for sign in _SIGNS):
        return None
    line, name = text.splitlines()[-1], type(error).__name__
    return Trial(failure=line if line.startswith(name) else f"{name}: {line}")


def _fetch(
    loader: DataLoader[Any], indices: Sequence[list[int]], ahead: int, clock: Callable[[], int], limit_s: float
) -> list[_Moved]:
    """Return what a worker of its own took for the batches that came in time and were timed, so many of them ahead."""
    until_ns = clock() + int(limit_s * 1e9)
    trial = ApartLoader(
        loader.dataset,
        batch_sampler=indices,
        prefetch_factor=ahead,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        timeout=limit_s,
    )
    workers = Workers(trial, clock)
    batches = _forked(trial, workers)
    queue = CoreQueue()
    moved: list[_Moved] = []
    try:
        while len(moved) < len(indices) and clock() < until_ns:
            asked_ns, queued_ns = clock(), queue.waited_ns()
            batches._next_data()
            got_ns, queued_ns = clock(), queue.waited_ns() - queued_ns
            fetched = workers.delivered(0)
            if fetched is UNKNOWN:
                break
            move_ns = got_ns - max(asked_ns, fetched.begin_ns + fetched.fetch_ns) - queued_ns
            moved.append(_Moved(fetched.fetch_ns - fetched.queued_ns, move_ns))
    finally:
        batches._shutdown_workers()
    return moved


def _forked(trial: ApartLoader, workers: Workers) -> Any:
    FORKING.workers = workers
    try:
        return trial.begin()
    finally:
        FORKING.workers = None
