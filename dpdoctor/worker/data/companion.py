"""A loader process of ours that fetches with the script's dataset while the script trains, and keeps nothing.

How much a fetch and a training step slow each other is no property of either, but of the caches, the memory and the
cores that they share: it has to be tried.
"""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Event
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from dpdoctor.loading import FetchBeside
from dpdoctor.worker.data.apart import ApartLoader, made_up
from dpdoctor.worker.data.held import Held

BATCHES = 64
# A fetch that takes longer than this is not waited for.
ENDS_WITHIN_S = 30.0

SEVERAL = "not one loader alone feeds the training"
GONE = "the loader that feeds the training is gone"
HAS_WORKERS = "the loader has workers of its own, which fetch beside the training anyway"
NOT_MADE_UP = "batches of its dataset cannot be made up: it has no length, or its batches are not of one size"
SHARED = "{held}, and a process that fetches beside the training would share the place in it with the script"


class Companion:
    """At most one process at a time. `find` returns a loader by the number that the tally knows it by, while it lives.

    `loaders` in the methods are those that feed the training.
    """

    def __init__(
        self, find: Callable[[int], DataLoader[Any] | None], clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._find = find
        self._clock = clock
        self._held = Held()
        self._batches: Any = None
        self._stop: Event | None = None
        self._refused: str | None = None
        self._fetches_ns: dict[int, list[int]] = {}
        self._number = 0

    def unfit(self, loaders: frozenset[int]) -> str | None:
        """Return why nothing can be fetched beside the training, or why it need not be; None: it can."""
        if len(loaders) != 1:
            return SEVERAL
        loader = self._find(next(iter(loaders)))
        if loader is None:
            return GONE
        if loader.num_workers:
            return HAS_WORKERS
        if not made_up(loader, 1):
            return NOT_MADE_UP
        held = self._held.shared()
        return held and SHARED.format(held=held)

    def begin(self, loaders: frozenset[int]) -> None:
        """Begin to fetch with the dataset of the only loader that feeds the training, if that is fit."""
        # Asked anew: meanwhile the script may have opened a file, or let go of its loader.
        self._refused = self.unfit(loaders)
        if self._refused:
            return
        (self._number,) = loaders
        loader = self._find(self._number)
        assert loader is not None
        indices = made_up(loader, BATCHES)
        self._stop = multiprocessing.get_context("fork").Event()
        on_and_on = _OnAndOn(loader.dataset, loader.collate_fn, indices, self._stop, self._clock)
        apart = ApartLoader(
            loader.dataset,
            batch_sampler=indices[:1],
            collate_fn=on_and_on,
            worker_init_fn=loader.worker_init_fn,
            timeout=ENDS_WITHIN_S,
        )
        self._batches = apart.begin()

    def end(self) -> str | None:
        """Let the process end; return why nothing can be fetched in a process, None: it can."""
        if self._stop is None:
            return self._refused
        self._stop.set()
        try:
            self._fetches_ns.setdefault(self._number, []).extend(self._batches._next_data())
        except Exception as error:  # noqa: BLE001 - a dataset of the script's may raise anything
            return f"the dataset cannot be fetched from in a loader process: {_last_line(error)}"
        finally:
            self._batches._shutdown_workers()
            self._batches = self._stop = None
        return None

    def records(self) -> tuple[FetchBeside, ...]:
        """Return what its fetches took, by loader."""
        return tuple(
            FetchBeside(loader=number, n=len(found), fetch_ns=int(statistics.fmean(found)))
            for number, found in sorted(self._fetches_ns.items())
            if found
        )


class _OnAndOn:
    """Takes the place of collate in the worker: fetches until it is told to stop, and returns what each fetch took.

    Once at least. The items that it is called with have paid for what is lazy.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        indices: Sequence[list[int]],
        stop: Event,
        clock: Callable[[], int],
    ) -> None:
        self._fetcher = _MapDatasetFetcher(dataset, True, collate, False)
        self._indices = indices
        self._stop = stop
        self._clock = clock

    def __call__(self, _: Any) -> list[int]:
        took_ns = []
        for indices in itertools.cycle(self._indices):
            begin_ns = self._clock()
            self._fetcher.fetch(indices)
            took_ns.append(self._clock() - begin_ns)
            if self._stop.is_set():
                break
        return took_ns


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
