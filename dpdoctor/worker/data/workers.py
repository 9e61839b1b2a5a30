"""What a loader's worker processes do, seen from inside of them, and how far they are ahead of the training thread."""

from __future__ import annotations

import mmap
import pkgutil
import struct
import threading
from collections.abc import Callable
from typing import Any

import torch
from msgspec.structs import astuple
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data.dataloader import _DatasetKind, _MultiProcessingDataLoaderIter

from dpdoctor.worker.data.fetches import UNKNOWN, Chain, Fetched, Look, WatchedFetcher, find_chains
from dpdoctor.worker.facts.cpu import Waits

# Of a record: what finds it, and the fields that every fetch has.
_KEYS = 2
_FIXED = len(Fetched.__struct_fields__) - 1
# What torch notes of a task is its worker, and the batch where that has come out of turn.
_WITH_DATA = 2


class Workers:
    """The workers of one iterator, from both sides: in each of them `fetcher`, in the training process the rest."""

    def __init__(self, loader: DataLoader[Any], clock: Callable[[], int]) -> None:
        self.chains: list[Chain] = find_chains(loader.dataset)
        self._clock = clock
        self._num_workers = loader.num_workers
        # Batches that were fetched and not handed over yet: when some workers of an iterable dataset are at their end,
        # all of these may be one worker's.
        depth = loader.num_workers * (loader.prefetch_factor or 1) + 1
        self._ring = Ring(loader.num_workers, depth, sum(len(chain.entries) for chain in self.chains))
        self._generation = 0
        self._delivered: list[int] = []
        self.restart()

    def restart(self) -> None:
        """Begin an iteration: each worker makes a new fetcher for it, and numbers its fetches anew."""
        self._generation += 1
        self._delivered = [0] * self._num_workers

    def delivered(self, worker: int) -> Fetched:
        """Return what the fetch of the next batch of a worker took: they come in the order in which it fetched them."""
        number = self._delivered[worker]
        self._delivered[worker] += 1
        return self._ring.read(worker, self._generation, number)

    def fetcher(self, fetcher: Any, worker: int) -> WatchedFetcher:
        """Return what stands in for a worker's fetcher of the next iteration."""
        generation = self._generation
        self._generation += 1

        def note(number: int, fetched: Fetched) -> None:
            self._ring.write(worker, generation, number, fetched)

        look = Look(self.chains, self._clock) if self.chains else None
        return WatchedFetcher(fetcher, look, note, self._clock, Waits(self._clock))


class _Forking(threading.local):
    """What the workers that this thread forks now inherit."""

    workers: Workers | None = None


FORKING = _Forking()


class WatchedLoop:
    """Stands in for torch's `_worker_loop`, the target of every worker process.

    One that is started, instead of forked, is sent this object, and gets torch's own loop: it inherited no memory.
    """

    def __init__(self, loop: Callable[..., None]) -> None:
        self._loop = loop

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run the loop, in a worker."""
        if FORKING.workers is not None:
            _watch_fetchers(FORKING.workers)
        self._loop(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return pkgutil.resolve_name, (f"{self._loop.__module__}:{self._loop.__qualname__}",)


def _watch_fetchers(workers: Workers) -> None:
    """Watch each fetcher that this process makes for its dataset, as a worker does for every iteration."""
    create: Callable[..., Any] = _DatasetKind.create_fetcher

    def watched(kind: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        fetcher = create(kind, dataset, *args, **kwargs)
        worker = get_worker_info()
        # A dataset may iterate loaders of its own.
        if worker is None or dataset is not worker.dataset:
            return fetcher
        return workers.fetcher(fetcher, worker.id)

    _DatasetKind.create_fetcher = staticmethod(watched)  # type: ignore[method-assign]


def inherits(loader: DataLoader[Any]) -> bool:
    """Return whether a loader's workers inherit the memory of this process: whether they are forked."""
    context = loader.multiprocessing_context or torch.multiprocessing
    return bool(context.get_start_method() == "fork")


class Ring:
    """Memory that workers share with the training process: what their last fetches took.

    Nothing is pickled, nothing is sent beside the script's own batches, and nobody waits: a worker writes its record
    before it sends the batch, the training process reads it after the batch has come.

    It is made before they are forked, with `depth` records for each of `num_workers` workers and `num_transforms` times
    in each. A record is found by the generation of the worker's fetcher, from 1, and the number of the fetch, from 0.
    """

    def __init__(self, num_workers: int, depth: int, num_transforms: int) -> None:
        self._depth = depth
        self._record = struct.Struct(f"={_KEYS + _FIXED + num_transforms}q")
        self._zeros = (0,) * num_transforms
        self._memory = mmap.mmap(-1, num_workers * depth * self._record.size)

    def write(self, worker: int, generation: int, number: int, fetched: Fetched) -> None:
        """Keep what a fetch took, in place of the one `depth` fetches before it."""
        *fixed, transforms_ns = astuple(fetched)
        values = (generation, number, *fixed, *(transforms_ns or self._zeros))
        self._record.pack_into(self._memory, self._place(worker, number), *values)

    def read(self, worker: int, generation: int, number: int) -> Fetched:
        """Return what a fetch took; UNKNOWN when its record is not there."""
        found = self._record.unpack_from(self._memory, self._place(worker, number))
        if found[:_KEYS] != (generation, number):
            return UNKNOWN
        fixed = found[_KEYS : _KEYS + _FIXED]
        return Fetched(*fixed, found[_KEYS + _FIXED :])  # type: ignore[call-arg]

    def _place(self, worker: int, number: int) -> int:
        return (worker * self._depth + number % self._depth) * self._record.size


def depths(iterator: Any) -> tuple[int, int]:
    """Return how many batches lie ready in the training process and how many its workers are still to deliver.

    Both are 0 without workers. A batch that is being pinned is still to be delivered.
    """
    if not isinstance(iterator, _MultiProcessingDataLoaderIter) or iterator._shutdown:
        return 0, 0
    queued = iterator._worker_result_queue.qsize()
    if iterator._pin_memory:
        queued += iterator._data_queue.qsize()
    out_of_turn = sum(len(info) == _WITH_DATA for info in iterator._task_info.values())
    return queued + out_of_turn, max(0, iterator._tasks_outstanding - queued)
