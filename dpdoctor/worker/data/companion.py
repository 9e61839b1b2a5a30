"""Workers of ours beside the script's loader, for a while: what fetching in processes and handing over give, and cost.

Or none: then the training thread fetches what the script's workers would.

How much a fetch, a hand-over and a training step slow each other is no property of any of them, but of the caches, the
memory, the cores and the locks that they share: it has to be tried in place.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import stat
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from dpdoctor import units
from dpdoctor.spec import ONE_WORKER, SEVERAL_LOADERS, LoaderSetting
from dpdoctor.worker.data.apart import ApartLoader, last_line, made_up, random_numbers_kept

BATCHES = 64
# A process that hands nothing over within so many times the longest fetch is given up: all ranks wait with it.
PATIENCE, LEAST_PATIENCE_S, MOST_PATIENCE_S = 20, 4.0, 30.0
# Now and then a process that is forked beside the threads of a backend never begins; the next one does.
MOST_SILENT = 2

GONE = "the loader that feeds the training is gone"
HAS_WORKERS = "the loader has workers of its own, which fetch beside the training anyway"
NOT_MADE_UP = (
    "batches of its dataset cannot be made up: it has no length, its batches are not of one size, or it is not known "
    "which indices its sampler gives"
)
SHARED = "{held}, and a process that fetches beside the training would share the place in it with the script"
FAILED = "the dataset cannot be fetched from in a loader process: {error}"
FAILED_HERE = "the dataset cannot be fetched from in the training process: {error}"
LEFT_OPEN = (
    "{held} since the training process fetched, and loader processes that are forked later share the place in it"
)
SILENT = "a loader process that was started beside the training handed nothing over within {}"
_TIMED_OUT = "DataLoader timed out"
CANNOT_TELL = "this system does not say which files are open"

_DESCRIPTORS = Path("/proc/self/fd")
# Each open of what lies there has a place of its own, or is mapped to memory and never read by place.
_NOT_READ_BY_PLACE = ("/proc/", "/sys/", "/dev/", "/memfd:")
# Copies of datasets with a `__del__`, which might release what the script's own still use: it is not to run.
_KEPT: list[Dataset[Any]] = []

# Begins to iterate a loader of ours, whose batches are recorded as those of the script's loader of that number. Returns
# torch's iterator and what takes the next batch over from it.
Open = Callable[[ApartLoader, int], tuple[Any, Callable[[], Any]]]


class Companion:
    """Processes of one setting at a time. `find` returns a loader by the tally's number of it, while it lives.

    `longest_fetch_s` tells the longest fetch of a loader so far. `loaders` in the methods are those that feed the
    training.

    Attributes:
        lost_ns: what was waited in vain.
        may_do_better: whether what failed last may work another time.
    """

    def __init__(
        self,
        find: Callable[[int], DataLoader[Any] | None],
        opens: Open,
        longest_fetch_s: Callable[[int], float] = lambda _: 0.0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._find = find
        self._open = opens
        self._longest_fetch_s = longest_fetch_s
        self._clock = clock
        self._num_silent = 0
        self.lost_ns = 0
        self.may_do_better = False
        self._held = Held()
        self._iterator: Any = None
        self._next: Callable[[], Any] | None = None
        self._failure: str | None = None
        self._fetches_here = False

    def unfit(self, loaders: frozenset[int]) -> str | None:
        """Return why nothing can be fetched beside the training; None: it can."""
        if len(loaders) != 1:
            return SEVERAL_LOADERS
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
        self._failure, self.may_do_better = self.unfit(loaders), False
        if self._failure:
            return
        self._fetches_here = not setting.num_workers
        (number,) = loaders
        loader = self._find(number)
        assert loader is not None
        patience_s = PATIENCE * self._longest_fetch_s(number)
        timeout = min(MOST_PATIENCE_S, max(LEAST_PATIENCE_S, patience_s))
        of_workers = {"prefetch_factor": setting.prefetch_factor, "timeout": timeout} if setting.num_workers else {}
        apart = ApartLoader(
            _copy(loader.dataset, {}) if self._fetches_here else loader.dataset,
            num_workers=setting.num_workers,
            batch_sampler=_OnAndOn(made_up(loader, BATCHES)),
            collate_fn=loader.collate_fn,
            worker_init_fn=loader.worker_init_fn,
            pin_memory=loader.pin_memory,
            **of_workers,
        )
        try:
            self._iterator, self._next = self._open(apart, number)
            if self._fetches_here:
                self._next = _with_numbers_kept(self._next)
        except (OSError, RuntimeError) as error:  # it could not be forked
            self._failure = self._failed(error)

    def take(self) -> None:
        """Wait for the next batch, take it over and throw it away; do nothing once that failed."""
        if self._next is None or self._failure:
            return
        asked_ns = self._clock()
        try:
            self._next()
        except Exception as error:  # noqa: BLE001 - a dataset of the script's may raise anything
            self._failure = self._failed(error)
            if str(error).startswith(_TIMED_OUT):
                self._went_silent(self._clock() - asked_ns)

    def _went_silent(self, waited_ns: int) -> None:
        self._failure = SILENT.format(units.seconds(waited_ns * 1e-9))
        self.lost_ns += waited_ns
        self._num_silent += 1
        self.may_do_better = self._num_silent < MOST_SILENT
        # Told to end, it would be waited for twice 5 s more.
        torch._C._remove_worker_pids(id(self._iterator))
        self._iterator._worker_pids_set = False
        for process in self._iterator._workers:
            process.kill()

    def end(self) -> str | None:
        """Let the processes end; return why nothing can be fetched in one, None: it can."""
        if isinstance(self._iterator, _MultiProcessingDataLoaderIter):
            self._iterator._shutdown_workers()
        self._iterator = self._next = None
        _empty_kept()
        if self._fetches_here and self._failure is None and (held := self._held.shared()):
            self._failure = LEFT_OPEN.format(held=held)
        return self._failure

    def _failed(self, error: Exception) -> str:
        return (FAILED_HERE if self._fetches_here else FAILED).format(error=last_line(error))


def _copy(dataset: Dataset[Any], copies: dict[int, Dataset[Any]]) -> Dataset[Any]:
    """Return a copy, also of datasets in it, so that the script's own keep nothing that is opened at the first item.

    `copies`: those made so far, by the id of what they are of, as several may refer to one. What cannot be copied is
    returned itself.
    """
    if id(dataset) in copies:
        return copies[id(dataset)]
    copies[id(dataset)] = dataset
    with contextlib.suppress(Exception):  # a dataset of the script's may raise anything
        own = vars(dataset)
        copied = copy.copy(dataset)
        if vars(copied) is not own:
            copies[id(dataset)] = copied
            if hasattr(type(copied), "__del__"):
                _KEPT.append(copied)
            for name, held in vars(copied).items():
                if isinstance(held, Dataset):
                    vars(copied)[name] = _copy(held, copies)
    return copies[id(dataset)]


class _Emptied(Dataset[Any]):
    """What becomes of a copy with a `__del__`."""


def _empty_kept() -> None:
    """Let go of what copies hold, so that what they opened themselves is closed, and of the copies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a file was not closed before
        for copied in _KEPT:
            vars(copied).clear()
            with contextlib.suppress(TypeError):  # one with slots stays what it is, and outlives the script
                copied.__class__ = _Emptied
    _KEPT[:] = [copied for copied in _KEPT if not isinstance(copied, _Emptied)]


def _with_numbers_kept(fetch: Callable[[], Any]) -> Callable[[], Any]:
    """Return what does the same and leaves the script its random numbers: in a worker it would have had others."""

    def kept() -> Any:
        with random_numbers_kept():
            return fetch()

    return kept


class _OnAndOn:
    """Batches of indices without an end, iterated over as often as there are processes."""

    def __init__(self, batches: Sequence[list[Any]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[Any]]:
        return itertools.cycle(self._batches)


class Held:
    """What the script holds open that a forked process would move under its feet: its places in files, its connections.

    A fork shares every open file's offset. A buffered reader trusts that nobody else moves it, and returns other bytes
    where somebody did; two that speak through one socket hear each other's answers.

    What was open when this was made is not the script's.
    """

    def __init__(self, descriptors: Path = _DESCRIPTORS) -> None:
        self._descriptors = descriptors
        self._before = frozenset(self._open())

    def shared(self) -> str | None:
        """Return the first file or connection that a fetch in a forked process may disturb; None: there is none."""
        if not self._descriptors.is_dir():
            return CANNOT_TELL
        held = (name for place, name in sorted(self._open().items()) if place not in self._before)
        return next(held, None)

    def _open(self) -> dict[tuple[int, int, int], str]:
        """Return what is open for reading, by descriptor, device and inode."""
        found = {}
        for entry in sorted(self._descriptors.glob("*")):
            try:
                status, name, mode = entry.stat(), str(entry.readlink()), entry.lstat().st_mode
            except OSError:  # closed meanwhile: at least the descriptor that lists the others
                continue
            # The link's own permissions are those that it was opened with.
            if not mode & stat.S_IRUSR:
                continue
            place = int(entry.name), status.st_dev, status.st_ino
            if stat.S_ISSOCK(status.st_mode):
                found[place] = "a connection (socket) is open"
            elif stat.S_ISREG(status.st_mode) and not name.startswith(_NOT_READ_BY_PLACE):
                found[place] = f"{name} is open"
        return found
