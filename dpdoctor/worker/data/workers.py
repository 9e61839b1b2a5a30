"""What a loader's worker processes do, seen from inside of them."""

from __future__ import annotations

import pkgutil
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data.dataloader import _DatasetKind

from dpdoctor.worker.data import chains
from dpdoctor.worker.data.chains import Chain
from dpdoctor.worker.data.fetches import Fetched, WatchedFetcher
from dpdoctor.worker.data.look import Look
from dpdoctor.worker.data.ring import Ring
from dpdoctor.worker.facts.cpu import Waits


class Workers:
    """The workers of one iterator, from both sides: in each of them `fetcher`, in the training process the rest."""

    def __init__(self, loader: DataLoader[Any], clock: Callable[[], int]) -> None:
        self.chains: list[Chain] = chains.find(loader.dataset)
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
        return WatchedFetcher(fetcher, look, note, self._clock, Waits())


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
