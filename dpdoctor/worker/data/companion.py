"""Workers of ours beside the script's loader, for a while: what fetching in processes and handing over give, and cost.

How much a fetch, a hand-over and a training step slow each other is no property of any of them, but of the caches, the
memory, the cores and the locks that they share: it has to be tried in place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader

from dpdoctor.spec import ONE_WORKER, LoaderSetting
from dpdoctor.worker.data.apart import ApartLoader, last_line, made_up
from dpdoctor.worker.data.held import Held

BATCHES = 64
# A fetch that takes longer than this is not waited for.
ENDS_WITHIN_S = 30.0

SEVERAL = "not one loader alone feeds the training"
GONE = "the loader that feeds the training is gone"
HAS_WORKERS = "the loader has workers of its own, which fetch beside the training anyway"
NOT_MADE_UP = "batches of its dataset cannot be made up: it has no length, or its batches are not of one size"
SHARED = "{held}, and a process that fetches beside the training would share the place in it with the script"
FAILED = "the dataset cannot be fetched from in a loader process: {error}"

# Begins to iterate a loader of ours, whose batches are recorded as those of the script's loader of that number. Returns
# torch's iterator and what takes the next batch over from it.
Open = Callable[[ApartLoader, int], tuple[Any, Callable[[], Any]]]


class Companion:
    """Processes of one setting at a time. `find` returns a loader by the tally's number of it, while it lives.

    `loaders` in the methods are those that feed the training.
    """

    def __init__(self, find: Callable[[int], DataLoader[Any] | None], opens: Open) -> None:
        self._find = find
        self._open = opens
        self._held = Held()
        self._iterator: Any = None
        self._next: Callable[[], Any] | None = None
        self._failure: str | None = None

    def unfit(self, loaders: frozenset[int]) -> str | None:
        """Return why nothing can be fetched beside the training; None: it can."""
        if len(loaders) != 1:
            return SEVERAL
        loader = self._find(next(iter(loaders)))
        if loader is None:
            return GONE
        if not made_up(loader, 1):
            return NOT_MADE_UP
        held = self._held.shared()
        return held and SHARED.format(held=held)

    def unneeded(self, loaders: frozenset[int]) -> str | None:
        """Return that processes of the script's own fetch already; None: none do, or that is not known."""
        found = [self._find(number) for number in loaders]
        return HAS_WORKERS if any(loader is not None and loader.num_workers for loader in found) else None

    def begin(self, loaders: frozenset[int], setting: LoaderSetting = ONE_WORKER) -> None:
        """Begin to fetch with the dataset of the only loader that feeds the training, if that is fit."""
        # Asked anew: meanwhile the script may have opened a file, or let go of its loader.
        self._failure = self.unfit(loaders)
        if self._failure:
            return
        (number,) = loaders
        loader = self._find(number)
        assert loader is not None
        apart = ApartLoader(
            loader.dataset,
            num_workers=setting.num_workers,
            prefetch_factor=setting.prefetch_factor,
            batch_sampler=_OnAndOn(made_up(loader, BATCHES)),
            collate_fn=loader.collate_fn,
            worker_init_fn=loader.worker_init_fn,
            pin_memory=loader.pin_memory,
            timeout=ENDS_WITHIN_S,
        )
        try:
            self._iterator, self._next = self._open(apart, number)
        except (OSError, RuntimeError) as error:  # it could not be forked
            self._failure = FAILED.format(error=last_line(error))

    def take(self) -> None:
        """Wait for the next batch, take it over and throw it away; do nothing once that failed."""
        if self._next is None or self._failure:
            return
        try:
            self._next()
        except Exception as error:  # noqa: BLE001 - a dataset of the script's may raise anything
            self._failure = FAILED.format(error=last_line(error))

    def end(self) -> str | None:
        """Let the processes end; return why nothing can be fetched in one, None: it can."""
        if self._iterator is not None:
            self._iterator._shutdown_workers()
        self._iterator = self._next = None
        return self._failure


class _OnAndOn:
    """Batches of indices without an end, iterated over as often as there are processes."""

    def __init__(self, batches: Sequence[list[int]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.cycle(self._batches)
