"""Whether a worker would serve the script's loader, and what handing its batches over costs: tried apart from training.

The script's samplers and random numbers have no part in it.
"""

from __future__ import annotations

import math
import multiprocessing.queues
import statistics
import time
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, SequentialSampler, default_collate

from dpdoctor.loading import HandOff
from dpdoctor.worker.base import structure
from dpdoctor.worker.data.apart import ApartLoader, last_line, made_up
from dpdoctor.worker.data.fetches import num_bytes

BATCHES = 16
# Fewer say too little; they came too slowly, or not at all.
LEAST_BATCHES = 5
POLL_S = 0.0005
# Until nothing of the worker is awake: taken over at once, a batch costs half as much.
ASLEEP_S = 0.01
# Not the first alone: some fail only when they open their file anew.
_TRIED_BATCHES = 2
# In what torch says of a worker that raised, and of one that died.
_SIGNS = ("in DataLoader worker process", "exited unexpectedly")
_PLAIN = (str, bytes, int, float, bool, complex, type(None))


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


def measure_hand_off(number: int, specimen: Specimen, clock: Callable[[], int], limit_s: float) -> HandOff | None:
    """Return the cost of moving batches like `specimen`, of the loader known by `number`; None: it did not succeed.

    A loader of one worker makes the batches, and the script's datasets have no part in it. It has time to send each
    before it is asked for, and to fall asleep, as beside a training step: taking a batch over wakes it several times.
    """
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


def failure_in_worker(loader: DataLoader[Any], limit_s: float) -> str:
    """Return what the dataset raised in a worker, or how that died, in a line; empty: nothing within `limit_s`."""
    indices = made_up(loader, _TRIED_BATCHES)
    if not indices:
        return ""
    apart = ApartLoader(
        loader.dataset,
        batch_sampler=indices,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        timeout=limit_s,
    )
    try:
        batches = apart.begin()
        try:
            for _ in indices:
                batches._next_data()
        finally:
            batches._shutdown_workers()
    except Exception as error:  # noqa: BLE001 - a dataset of the script's may raise anything
        # Else it was only slow, or could not be forked.
        return last_line(error) if any(sign in str(error) for sign in _SIGNS) else ""
    return ""


class _UnknownContentError(Exception):
    """A batch holds something that cannot be made from a description."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Specimen:
    """What a batch of an iterator's is made of, without its data: enough to make one that takes as long to move.

    `shared`: its workers make tensors in shared memory, as default_collate does.
    """

    content: Any
    shared: bool
    pin_memory: bool

    def make(self) -> Any:
        """Return a new batch like the one described, on the CPU; its tensors are zeros."""
        return _make(self.content, shared=self.shared)


def describe(batch: Any, iterator: Any) -> Specimen | None:
    """Return the description of a batch from one of torch's iterators; None: it holds other types than known ones."""
    try:
        content = _describe(batch)
    except _UnknownContentError:
        return None
    return Specimen(content, iterator._collate_fn is default_collate, iterator._pin_memory)


def _describe(value: Any) -> Any:
    if type(value) is torch.Tensor and structure.is_dense(value) and value.is_cpu and not value.is_quantized:
        return _Tensor(value.shape, value.dtype)
    if type(value) in (list, tuple):
        return type(value)(map(_describe, value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple(map(_describe, value))
    if isinstance(value, UserDict):
        value = value.data
    if isinstance(value, dict):
        return {_describe(key): _describe(item) for key, item in dict.items(value)}
    if type(value) in _PLAIN:
        return value
    raise _UnknownContentError


def _make(content: Any, *, shared: bool) -> Any:
    if isinstance(content, _Tensor):
        made = torch.zeros(content.shape, dtype=content.dtype)
        return made.share_memory_() if shared else made
    if isinstance(content, dict):
        return {key: _make(item, shared=shared) for key, item in content.items()}
    if isinstance(content, (list, tuple)):
        return type(content)(_make(item, shared=shared) for item in content)
    return content
