"""One record per batch that a loader gives for training, of where it came from; and what the transforms take."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from msgspec.structs import replace
from torch.utils.data import DataLoader, _utils
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from dpdoctor.loading import IN_PROCESS, BatchRecord, HandOff, TransformTime
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.data.apart import ApartLoader
from dpdoctor.worker.data.fetches import UNKNOWN, Fetched, Look, WatchedFetcher, find_chains
from dpdoctor.worker.data.hand_off import Specimen, describe, failure_in_worker, measure_hand_off
from dpdoctor.worker.data.workers import FORKING, WatchedLoop, Workers, depths, inherits
from dpdoctor.worker.facts.cpu import Waits

_NAME = "dpdoctor_seen"
# For a dataset to fetch in a worker, once training is over.
TRIAL_S = 3.0


class Log(Protocol):
    """Where records go."""

    @property
    def num_steps(self) -> int:
        """Return how many steps have ended."""

    def batch(self, make: Callable[..., BatchRecord], *values: Any) -> None:
        """Keep one record, which is made of these values when it is written."""


@dataclass(slots=True)
class _Seen:
    """An iterator in its present iteration: `batch` is the number of the next, `opening_ns` what beginning it took."""

    source: _Source
    loader: int
    iteration: int
    records: bool
    opening_ns: int
    batch: int = 0


class Inside:
    """Watches what is iterated with gradients enabled; evaluations leave no record.

    Nothing of the script's changes: torch's own fetchers, which it does not hold, are replaced by watched ones.
    `longest_fetch_ns` is that of each loader; `item_per_row` are those in whose batches each row is one item.
    """

    def __init__(self, clock: Callable[[], int], log: Log) -> None:
        self._clock = clock
        self._log = log
        self._iterations: Counter[int] = Counter()
        # Per loader, position and name: items looked at, time of the callable, time of the whole items.
        self._transforms: dict[tuple[int, int, str], list[int]] = {}
        # What a loader's first batch was made of; None: of things that cannot be made anew.
        self._specimens: dict[int, Specimen | None] = {}
        self._waits = Waits(clock)
        self._loaders: dict[int, weakref.ref[DataLoader[Any]]] = {}
        self.hand_offs: tuple[HandOff, ...] = ()
        self.longest_fetch_ns: Counter[int] = Counter()
        self.item_per_row: set[int] = set()

    def watch(self, patches: Patches) -> None:
        """See what workers do, and which of them a batch comes from."""
        process = vars(_MultiProcessingDataLoaderIter)["_process_data"]

        def seen_process(iterator: Any, data: Any, worker: int, *args: Any, **kwargs: Any) -> Any:
            seen = vars(iterator).get(_NAME)
            # Before the next task goes out to the worker, whose record would take this one's place.
            if seen is not None and isinstance(seen.source, _FromWorkers):
                seen.source.delivered(worker)
            return process(iterator, data, worker, *args, **kwargs)

        patches.replace(_MultiProcessingDataLoaderIter, "_process_data", seen_process)
        patches.replace(_utils.worker, "_worker_loop", WatchedLoop(_utils.worker._worker_loop))

    def let_pass(self, *, on: bool) -> None:
        """Let what the training thread fetches pass unseen, or see it again."""
        self._waits.lets_pass = on

    def begin(self, loader: DataLoader[Any], number: int, begin: Callable[[DataLoader[Any]], Any]) -> Any:
        """Return the iterator that `begin` returns for a loader known by `number`."""
        iterator = self._opened(loader, number, begin, records=torch.is_grad_enabled())
        self._loaders[number] = weakref.ref(loader)
        return iterator

    def open_apart(self, loader: ApartLoader, number: int) -> tuple[Any, Callable[[], Any]]:
        """Return an iterator of a loader of ours, and what takes over its next batch, recorded as one of `number`'s."""
        iterator = self._opened(loader, number, ApartLoader.begin, records=True)
        return iterator, partial(self.recorded(type(iterator)._next_data), iterator)

    def _opened(self, loader: DataLoader[Any], number: int, begin: Callable[[Any], Any], *, records: bool) -> Any:
        before = FORKING.workers
        workers = Workers(loader, self._clock) if _makes_workers(loader) and inherits(loader) else None
        FORKING.workers = workers
        begin_ns = self._clock()
        try:
            iterator = begin(loader)
        finally:
            FORKING.workers = before
        self._met(iterator, workers, number, self._clock() - begin_ns, records=records)
        return iterator

    def _met(self, iterator: Any, workers: Workers | None, number: int, opening_ns: int, *, records: bool) -> None:
        seen = vars(iterator).get(_NAME)
        if seen is not None:
            seen.source.restart()
        source = seen.source if seen is not None else None
        # Workers may outlive an evaluation and train next; the training thread's own fetches need no watching then.
        if source is None and (records or isinstance(iterator, _MultiProcessingDataLoaderIter)):
            source = _source_of(iterator, workers, self._clock, self._waits)
        if source is not None:
            iteration = self._iterations[number]
            self._iterations[number] += records
            seen = _Seen(source, number, iteration, records, opening_ns)
            setattr(iterator, _NAME, seen)

    def recorded(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function that does for an iterator what `fetch` does, and records where the batch came from."""
        clock, log, waits = self._clock, self._log, self._waits
        specimens, longest_ns, item_per_row = self._specimens, self.longest_fetch_ns, self.item_per_row

        def recorded_fetch(iterator: Any) -> Any:
            seen = vars(iterator).get(_NAME)
            if seen is None or not seen.records:
                return fetch(iterator)
            source, before = seen.source, None
            if source.worker != IN_PROCESS:
                before = (waits.lap()[1], *depths(iterator))
            asked_ns = clock()
            batch = fetch(iterator)
            wait_ns, fetched, source.fetched = clock() - asked_ns, source.fetched, None
            if fetched is not None:  # else an iterator of the script's own kind got it in a way that is not watched
                log.batch(
                    _batch,
                    seen.loader,
                    seen.iteration,
                    seen.batch,
                    source.worker,
                    log.num_steps + 1,
                    asked_ns,
                    wait_ns,
                    before,
                    seen.opening_ns,
                    fetched,
                )
                seen.batch += 1
                seen.opening_ns = 0
                longest_ns[seen.loader] = max(longest_ns[seen.loader], fetched.fetch_ns)
                if fetched.item_per_row:
                    item_per_row.add(seen.loader)
                if fetched.num_items:
                    self._add(seen, fetched)
            if source.worker != IN_PROCESS:
                waits.skip()
            if seen.loader not in specimens:
                specimens[seen.loader] = describe(batch, iterator)
            return batch

        return recorded_fetch

    def _add(self, seen: _Seen, fetched: Fetched) -> None:
        for position, (name, own_ns) in enumerate(zip(seen.source.transforms, fetched.transforms_ns, strict=True)):
            totals = self._transforms.setdefault((seen.loader, position, name), [0, 0, 0])
            totals[0] += fetched.num_items
            totals[1] += own_ns
            totals[2] += fetched.items_ns

    def measure_hand_offs(self, limit_s: float) -> None:
        """Find out what moving a batch from a worker costs, for each loader that trained, within `limit_s`."""
        until_ns = self._clock() + int(limit_s * 1e9)
        found = [
            measure_hand_off(number, specimen, self._clock, (until_ns - self._clock()) * 1e-9)
            for number, specimen in self._specimens.items()
            if specimen is not None and self._clock() < until_ns
        ]
        self.hand_offs = tuple(self._tried(cost) for cost in found if cost is not None)

    def loader(self, number: int) -> DataLoader[Any] | None:
        """Return the loader that was iterated last under a number; None: the script let go of it."""
        reference = self._loaders.get(number)
        return reference() if reference else None

    def _tried(self, cost: HandOff) -> HandOff:
        """Return the cost with what the dataset raises in a worker, where the script has none that would show it."""
        loader = self.loader(cost.loader)
        if loader is None or loader.num_workers:
            return cost
        return replace(cost, failure=failure_in_worker(loader, TRIAL_S))

    def transforms(self) -> tuple[TransformTime, ...]:
        """Return what each callable of a chain took; those that were never called are left out."""
        return tuple(
            TransformTime(
                loader=loader, position=position, name=name, calls=calls, total_ns=total_ns, items_ns=items_ns
            )
            for (loader, position, name), (calls, total_ns, items_ns) in sorted(self._transforms.items())
            if total_ns
        )


class _Source(Protocol):
    """Where the batches of an iterator come from, as the training thread sees it: workers, or the thread itself.

    `worker` fetched the last batch, and `fetched` says what that took; None: no batch came since it was taken out.

    `transforms` names the callables that may have been timed meanwhile.
    """

    worker: int
    fetched: Fetched | None
    transforms: list[str]

    def restart(self) -> None:
        """Begin another iteration of the same iterator."""


class _InProcess:
    """The training thread fetches by itself, when it asks. It is noted from the making of this on."""

    def __init__(self, iterator: _SingleProcessDataLoaderIter, clock: Callable[[], int], waits: Waits) -> None:
        self.worker = IN_PROCESS
        self.fetched: Fetched | None = None
        found = find_chains(iterator._dataset)
        self.transforms = [name for chain in found for name in chain.names()]
        look = Look(found, clock) if found else None
        iterator._dataset_fetcher = WatchedFetcher(iterator._dataset_fetcher, look, self._note, clock, waits)

    def restart(self) -> None:
        """Do nothing: torch makes a new iterator for every iteration."""

    def _note(self, number: int, fetched: Fetched) -> None:  # noqa: ARG002 - the signature of a note
        self.fetched = fetched


class _FromWorkers:
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


def _source_of(iterator: Any, workers: Workers | None, clock: Callable[[], int], waits: Waits) -> _Source | None:
    """Return the source of a new iterator's batches; None: it is not one of torch's own kinds.

    `waits` are the training thread's.
    """
    if isinstance(iterator, _MultiProcessingDataLoaderIter):
        return _FromWorkers(workers)
    return _InProcess(iterator, clock, waits) if isinstance(iterator, _SingleProcessDataLoaderIter) else None


def _makes_workers(loader: DataLoader[Any]) -> bool:
    """Return whether the next iteration of a loader forks workers."""
    return loader.num_workers > 0 and loader._iterator is None


def _batch(  # noqa: PLR0917 - of one batch, as the recorder keeps them
    loader: int,
    iteration: int,
    batch: int,
    worker: int,
    step: int,
    asked_ns: int,
    wait_ns: int,
    before: tuple[int, int, int] | None,
    opening_ns: int,
    fetched: Fetched,
) -> BatchRecord:
    # Of workers: how long this thread waited for a core since the batch before, and how far ahead they were.
    gap_queued_ns, ready, outstanding = before or (fetched.gap_queued_ns, 0, 0)
    return BatchRecord(
        loader=loader,
        iteration=iteration,
        batch=batch,
        worker=worker,
        step=step,
        asked_ns=asked_ns,
        wait_ns=wait_ns,
        ready=ready,
        outstanding=outstanding,
        opening_ns=opening_ns,
        fetch_begin_ns=fetched.begin_ns,
        fetch_ns=fetched.fetch_ns,
        cpu_ns=fetched.cpu_ns,
        queued_ns=fetched.queued_ns,
        gap_queued_ns=gap_queued_ns,
        collate_ns=fetched.collate_ns,
        num_bytes=fetched.num_bytes,
    )
