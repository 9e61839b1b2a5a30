"""Where the batches of an iterator come from, as the training thread sees it: workers, or the thread itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from dpdoctor.loading import IN_PROCESS
from dpdoctor.worker.data import chains
from dpdoctor.worker.data.fetches import UNKNOWN, Fetched, WatchedFetcher
from dpdoctor.worker.data.look import Look
from dpdoctor.worker.data.workers import Workers
from dpdoctor.worker.facts.cpu import Waits


class Source(Protocol):
    """`worker` fetched the last batch, and `fetched` says what that took; None: no batch came since it was taken out.

    `transforms` names the callables that may have been timed meanwhile.
    """

    worker: int
    fetched: Fetched | None
    transforms: list[str]

    def restart(self) -> None:
        """Begin another iteration of the same iterator."""


class InProcess:
    """The training thread fetches by itself, when it asks. It is noted from the making of this on."""

    def __init__(self, iterator: _SingleProcessDataLoaderIter, clock: Callable[[], int], waits: Waits) -> None:
        self.worker = IN_PROCESS
        self.fetched: Fetched | None = None
        found = chains.find(iterator._dataset)
        self.transforms = [name for chain in found for name in chain.names()]
        look = Look(found, clock) if found else None
        iterator._dataset_fetcher = WatchedFetcher(iterator._dataset_fetcher, look, self._note, clock, waits)

    def restart(self) -> None:
        """Do nothing: torch makes a new iterator for every iteration."""

    def _note(self, number: int, fetched: Fetched) -> None:  # noqa: ARG002 - the signature of a note
        self.fetched = fetched


class FromWorkers:
    """Worker processes fetch ahead; `workers` None: they inherited nothing, and what they do is not known."""

    def __init__(self, workers: Workers | None) -> None:
        self.worker = 0
        self.fetched: Fetched | None = None
        self.transforms = [name for chain in workers.chains for name in chain.names()] if workers else []
        self._workers = workers

    def restart(self) -> None:
        """Begin another iteration with persistent workers."""
        if self._workers is not None:
            self._workers.restart()

    def delivered(self, worker: int) -> None:
        """Note that the next batch of a worker is handed over."""
        self.worker = worker
        self.fetched = UNKNOWN if self._workers is None else self._workers.delivered(worker)


def source_of(iterator: Any, workers: Workers | None, clock: Callable[[], int], waits: Waits) -> Source | None:
    """Return the source of a new iterator's batches; None: it is not one of torch's own kinds.

    `waits` are the training thread's.
    """
    if isinstance(iterator, _MultiProcessingDataLoaderIter):
        return FromWorkers(workers)
    return InProcess(iterator, clock, waits) if isinstance(iterator, _SingleProcessDataLoaderIter) else None


def makes_workers(loader: DataLoader[Any]) -> bool:
    """Return whether the next iteration of a loader forks workers."""
    return loader.num_workers > 0 and loader._iterator is None
