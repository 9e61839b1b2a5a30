"""What it takes to move a batch from a worker to the training thread, measured apart from training.

A loader of one worker makes batches like the script's. It has time to send each before it is asked for, and to fall
asleep, as beside a training step: taking a batch over wakes it several times. The script's datasets, samplers and
random numbers have no part in it.
"""

from __future__ import annotations

import math
import multiprocessing.queues
import statistics
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch.utils.data import Dataset, SequentialSampler

from dpdoctor.loading import HandOff
from dpdoctor.worker.base import structure
from dpdoctor.worker.data.apart import ApartLoader
from dpdoctor.worker.data.fetches import num_bytes
from dpdoctor.worker.data.specimen import Specimen

BATCHES = 16
# Fewer say too little; they came too slowly, or not at all.
LEAST_BATCHES = 5
POLL_S = 0.0005
# Until nothing of the worker is awake: taken over at once, a batch costs half as much.
ASLEEP_S = 0.01


class _Batches(Dataset[Any]):
    """Makes batches in a worker; each comes with the times that sending those before it took."""

    def __init__(self, specimen: Specimen, clock: Callable[[], int]) -> None:
        self._specimen = specimen
        self._clock = clock
        self._sent_ns: list[int] | None = None

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> Any:
        if self._sent_ns is None:
            self._sent_ns = []
            _time_sending(self._sent_ns, self._clock)
        return list(self._sent_ns), self._specimen.make()


def _time_sending(sent_ns: list[int], clock: Callable[[], int]) -> None:
    """Add the time of every object that this process, a worker of ours, puts into a queue."""

    class TimedPickler(ForkingPickler):
        @classmethod
        def dumps(cls, obj: Any, protocol: Any = None) -> Any:
            begin_ns = clock()
            data = ForkingPickler.dumps(obj, protocol)
            sent_ns.append(clock() - begin_ns)
            return data

    multiprocessing.queues._ForkingPickler = TimedPickler  # type: ignore[attr-defined]


def measure(number: int, specimen: Specimen, clock: Callable[[], int], limit_s: float) -> HandOff | None:
    """Return the cost of moving batches like `specimen`, of the loader known by `number`; None: it did not succeed."""
    dataset = _Batches(specimen, clock)
    loader = ApartLoader(
        dataset,
        batch_size=None,
        sampler=SequentialSampler(dataset),
        prefetch_factor=1,
        collate_fn=_as_it_is,
        pin_memory=specimen.pin_memory,
        timeout=math.ceil(limit_s),
    )
    try:
        return _receive(number, loader, clock, limit_s)
    except (RuntimeError, OSError, EOFError, MemoryError):  # the worker could not be forked, died or was too slow
        return None


def _receive(number: int, loader: ApartLoader, clock: Callable[[], int], limit_s: float) -> HandOff | None:
    until_ns = clock() + int(limit_s * 1e9)
    received_ns: list[int] = []
    sent_ns: list[int] = []
    size = num_tensors = 0
    batches = loader.begin()
    try:
        while len(received_ns) < len(loader) and _comes(batches, until_ns, clock):
            time.sleep(ASLEEP_S)
            begin_ns = clock()
            sent_ns, batch = batches._next_data()
            received_ns.append(clock() - begin_ns)
            size, num_tensors = num_bytes(batch), sum(1 for _ in structure.tensors(batch))
    finally:
        batches._shutdown_workers()
    if len(sent_ns) < LEAST_BATCHES:
        return None
    return HandOff(
        loader=number,
        n=len(sent_ns),
        num_bytes=size,
        send_ns=int(statistics.median(sent_ns)),
        receive_ns=int(statistics.median(received_ns)),
        num_tensors=num_tensors,
    )


def _comes(batches: Any, until_ns: int, clock: Callable[[], int]) -> bool:
    """Wait for the next batch, unless it takes too long; return whether it lies ready."""
    while clock() < until_ns:
        if batches._data_queue.qsize() if batches._pin_memory else batches._data_queue._reader.poll():
            return True
        time.sleep(POLL_S)
    return False


def _as_it_is(batch: Any) -> Any:
    return batch
