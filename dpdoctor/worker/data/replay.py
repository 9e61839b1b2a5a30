"""Hands out the loader's batches or, while an ablation says so, kept ones in their place."""

from __future__ import annotations

import copy
import time
import weakref
from collections import deque
from collections.abc import Callable, MutableMapping, Sized
from typing import Any

import numpy as np
import torch

from dpdoctor.loading import PAST_ITER
from dpdoctor.worker.base import aside, structure
from dpdoctor.worker.base.agreement import Agreement
from dpdoctor.worker.data.shard import length_of, next_size
from dpdoctor.worker.data.workers import depths

# Enough for a model whose speed depends on what it sees, few enough to be had at every script's start.
MOST_KEPT = 8
# So many of a loader's queues are held of what is taken away, not to be short of memory.
QUEUES_HELD = 2
# A fetch that takes longer than this is not waited for.
QUIET_WITHIN_S = 30.0
POLL_S = 0.001
# An object of the script's may lead to all its data: a batch of more values is not given twice.
MOST_VALUES = 1 << 16
# Given as they are.
_CONSTANTS = (str, bytes, int, float, complex, np.generic, type(None), torch.device, torch.dtype)

NO_LOADER = "no DataLoader feeds the training, step by step"
IN_THREADS = "a thread of the script fetches the batches ahead of the training"
UNBATCHED = "the loader does not batch by itself (batch_size=None)"
CHANGED = "the script changes batches in place, so that they cannot be given to it again"
NONE_KEPT = "no batch could be kept to be replayed"
BEGAN = "an epoch began in its window, and the loader's workers fetched meanwhile"
OTHER_LOADER = "in its window the training was fed by a loader of which no batch was kept"
STILL_FETCHING = "a worker was still fetching when its window began"
NOTHING_COPIED = "the script copies no tensor of its batches to the device by `to` or `cuda`"

Fetch = Callable[[Any], Any]


class Replay:
    """Stands between the script and the iterators of its loaders.

    Replayed batches count towards the length of the iterator that was asked: `for` ends after as many batches as the
    loader has, and schedulers that count on that are not asked for more. `replays` is true while it replays; `looks`:
    whether it is to be known if batches can be.
    """

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep
        self._kept: dict[int, list[Kept]] = {}
        self._turns: dict[int, list[Kept]] = {}
        self._given: dict[int, int] = {}
        self._asked: set[int] = set()
        self._live: dict[int, tuple[weakref.ref[Any], Fetch]] = {}
        self._levels: dict[int, int] = {}
        self._looked: dict[int, str | None] = {}
        self._batch_bytes: dict[int, int] = {}
        self._from_threads = self._keeps = self.replays = False
        self.looks = True
        self._cut: str | None = None
        self._spoilt: str | None = None
        self._wait: Callable[[], None] = _not_at_all

    def began(self, iterator: Any, number: int, told_length: int | None = None) -> None:
        """An iterator of a loader begins, perhaps not for the first time: persistent workers keep theirs.

        `told_length`: batches that the script expects of it; None: as many as its sampler tells.
        """
        iterator.dpdoctor_surplus, iterator.dpdoctor_length = 0, told_length
        queue = iterator._num_workers * getattr(iterator, "_prefetch_factor", 0)
        iterator.dpdoctor_held = deque(maxlen=max(1, QUEUES_HELD * queue))
        if self.replays and number in self._turns and iterator._num_workers:
            self._cut = BEGAN

    def next(self, iterator: Any, fetch: Fetch, *, ahead: bool = False, for_training: bool = True) -> tuple[Any, int]:
        """Return the next batch and how many indices were drawn for it, 0: not known.

        Raises:
            StopIteration: as many batches were handed out as the loader has.
        """
        loader = getattr(iterator, "dpdoctor_loader", None)
        if (self.replays or getattr(iterator, "dpdoctor_surplus", 0) > 0) and self._is_over(iterator):
            raise StopIteration
        if loader is None or not for_training:
            return fetch(iterator), next_size(iterator._sampler_iter)
        self._from_threads |= ahead
        if self.replays and not ahead and (kept := self._turn(loader)) is not None:
            self._wait()
            iterator.dpdoctor_surplus += 1
            _let_go(iterator)
            return kept.give(), kept.size
        try:
            batch = fetch(iterator)
        except StopIteration:
            if not (held := getattr(iterator, "dpdoctor_held", None)):
                raise
            iterator.dpdoctor_surplus += 1
            batch, size = held.popleft()
            if len(held) < -iterator.dpdoctor_surplus:
                held.append((batch, size))  # more were taken away than are held: they come again
            return batch, size
        size = next_size(iterator._sampler_iter)
        if self.replays:
            self._asked.add(loader)
        live = self._live.get(loader)
        if live is None or live[0]() is not iterator:
            self._live[loader] = weakref.ref(iterator), fetch
        if self.looks and loader not in self._looked:
            self._look(iterator, loader, batch)
        if self._keeps:
            self._keep(loader, batch, size)
        return batch, size

    def _turn(self, loader: int) -> Kept | None:
        """Return the batch whose turn it is; None: the loader has to be asked."""
        turns = self._turns.get(loader)
        if not turns or self._spoilt:
            return None
        given = self._given[loader] = self._given.get(loader, -1) + 1
        kept = turns[given % len(turns)]
        if kept.is_intact:
            return kept
        self._spoilt = CHANGED
        return None

    def _look(self, iterator: Any, loader: int, batch: Any) -> None:
        """Find out, at a loader's first batch, whether its batches can be kept, and how large they are."""
        self._looked[loader] = None if iterator._auto_collation else UNBATCHED
        try:
            self._batch_bytes[loader] = kept_bytes(batch)
        except UnreplayableError as error:
            self._looked[loader] = f"a batch holds {error}, which cannot be given to the script twice"

    def _keep(self, loader: int, batch: Any, size: int) -> None:
        if self._looked.get(loader) is None and len(self._kept.get(loader, ())) < MOST_KEPT:
            try:
                kept = Kept(batch, size)
            except UnreplayableError as error:
                self._looked[loader] = f"a batch holds {error}, which cannot be given to the script twice"
            else:
                self._kept.setdefault(loader, []).append(kept)

    def keep(self, *, on: bool) -> None:
        """Begin or cease to keep what is fetched, until there are MOST_KEPT batches."""
        self._keeps = on
        if not on:
            for kept in self._all_kept():
                kept.forget_originals()

    def copied_to_device(self, tensor: torch.Tensor) -> None:
        """The script copies a tensor to a device."""
        if self._keeps:
            for ring in self._kept.values():
                ring[-1].copied_to_device(tensor)

    def _all_kept(self) -> list[Kept]:
        return [kept for ring in self._kept.values() for kept in ring]

    def unfit(self, loaders: frozenset[int]) -> str | None:
        """Return why the loaders of these numbers, which feed the training, cannot be replayed; None: they can."""
        if self._from_threads:
            return IN_THREADS
        if not loaders:
            return NO_LOADER
        if any(loader not in self._looked for loader in loaders):
            return PAST_ITER
        return next((reason for loader in sorted(loaders) if (reason := self._looked[loader])), None)

    def num_bytes(self, loaders: frozenset[int]) -> int:
        """Return the memory that the kept batches of these loaders take, once all are kept."""
        return MOST_KEPT * sum(self._batch_bytes.get(loader, 0) for loader in loaders)

    def begin(self, device: torch.device | None = None, wait: Callable[[], None] | None = None) -> None:
        """Wait until no worker fetches, then replay; with a device, from there. `wait` is called before each batch."""
        self._cut = None if self._is_quiet() else STILL_FETCHING
        self._spoilt = None if self._all_kept() else NONE_KEPT
        self._turns, self._given, self._asked = self._kept, {}, set()
        self._wait = wait or _not_at_all
        if device is not None:
            moved = {n: [kept.on(device) for kept in ring if kept.moves] for n, ring in self._kept.items()}
            self._turns = {number: ring for number, ring in moved.items() if ring}
            self._spoilt = self._spoilt or (None if self._turns else NOTHING_COPIED)
        self.replays = True

    def end(self, loaders: frozenset[int]) -> tuple[str | None, bool]:
        """Ask the loaders again; return why the window does not count, and whether no other will.

        `loaders` have fed the training.
        """
        self.replays = False
        if self._asked & loaders:
            self._cut = OTHER_LOADER
        if not all(kept.is_intact for ring in self._turns.values() for kept in ring):
            self._spoilt = CHANGED
        self._turns = {}
        return self._spoilt or self._cut, self._spoilt is not None

    def _is_quiet(self) -> bool:
        waited = 0.0
        while any(depths(iterator)[1] for iterator, _ in self._iterators().values()):
            if waited >= QUIET_WITHIN_S:
                return False
            self._sleep(POLL_S)
            waited += POLL_S
        return True

    def note_levels(self) -> None:
        """Remember how many batches lie ready now."""
        if not self.replays:
            self._levels = {loader: depths(iterator)[0] for loader, (iterator, _) in self._iterators().items()}

    def drain(self, agreement: Agreement) -> None:
        """Take away batches until no more lie ready than when it was remembered, as many on every rank.

        While no step ran the workers went on to fetch, and a full queue would make the next steps fast. Where no replay
        took their place, the iterator gives them at its end, or of many the last again: it has as many batches as
        without us.
        """
        # What a thread of the script's reads is not ours to read.
        iterators = {} if self._from_threads else self._iterators()
        dropped = {
            loader: self._drop_to_level(loader, iterator, fetch) for loader, (iterator, fetch) in iterators.items()
        }
        most = max(numbers[0] for numbers in agreement.gather([max(dropped.values(), default=0)]))
        for loader, (iterator, fetch) in iterators.items():
            for _ in range(most - dropped.get(loader, 0)):
                _drop(iterator, fetch)

    def _drop_to_level(self, loader: int, iterator: Any, fetch: Fetch) -> int:
        """Throw away what lies ready above a loader's level and return how much; one that is new has no level."""
        dropped, level = 0, self._levels.get(loader)
        if level is None:
            return 0
        # Workers that are faster than this can drop are never caught up with.
        most = 2 * sum(depths(iterator))
        while dropped < most and depths(iterator)[0] > level and _drop(iterator, fetch):
            dropped += 1
        return dropped

    def _is_over(self, iterator: Any) -> bool:
        """Return whether replays and fetches together have reached the iterator's length."""
        told = getattr(iterator, "dpdoctor_length", None)
        batches = length_of(iterator._index_sampler) if told is None else told
        given = iterator._num_yielded + getattr(iterator, "dpdoctor_surplus", 0)
        return batches is not None and bool(given >= batches)

    def _iterators(self) -> dict[int, tuple[Any, Fetch]]:
        """Return the iterators that are in use, with what fetches from them."""
        found = ((loader, reference(), fetch) for loader, (reference, fetch) in sorted(self._live.items()))
        return {loader: (iterator, fetch) for loader, iterator, fetch in found if iterator is not None}


def _not_at_all() -> None:
    """Do nothing."""


def _drop(iterator: Any, fetch: Fetch) -> bool:
    """Take a batch away; return False when there was none."""
    try:
        batch = fetch(iterator)
    except StopIteration:
        return False
    iterator.dpdoctor_held.append((batch, next_size(iterator._sampler_iter)))
    iterator.dpdoctor_surplus -= 1
    _let_go(iterator)
    return True


def _let_go(iterator: Any) -> None:
    """Hold no more of the batches that were taken away than the iterator would be short of."""
    while len(iterator.dpdoctor_held) > max(0, -iterator.dpdoctor_surplus):
        iterator.dpdoctor_held.popleft()


class UnreplayableError(Exception):
    """A batch holds something that cannot be given twice; the message says what."""


def kept_bytes(batch: Any) -> int:
    """Return the memory that the tensors of a batch would take, kept; nothing is copied but what holds them.

    Raises:
        UnreplayableError: it cannot be kept.
    """
    sizes: list[int] = []

    def measure(tensor: torch.Tensor) -> torch.Tensor:
        _check_tensor(tensor)
        sizes.append(tensor.nbytes)
        return tensor

    def leave(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        sizes.append(array.nbytes)
        return array

    _copied(batch, measure, leave)
    return sum(sizes)


class Kept:
    """A copy of one batch of `size` drawn indices, of which `give` returns as many batches as are asked for.

    Containers and arrays are copied for each, so that the script may change them; tensors are the same ones every
    time, and `is_intact` says whether none was changed.

    Raises:
        UnreplayableError: the batch holds something else.
    """

    def __init__(self, batch: Any, size: int) -> None:
        self.size = size
        self._tensors: list[torch.Tensor] = []
        self._originals: list[torch.Tensor] = []
        self._copied_to_device: set[int] = set()
        self._batch = _copied(batch, self._own)

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        _check_tensor(tensor)
        own = aside.copy(tensor) if tensor.is_cpu else tensor.clone()
        own = own.pin_memory() if tensor.is_pinned() else own
        self._originals.append(tensor)
        self._tensors.append(own)
        return own

    def give(self) -> Any:
        """Return the batch."""
        return _copied(self._batch, lambda tensor: tensor)

    @property
    def is_intact(self) -> bool:
        """Return whether no tensor was changed since it was kept; what goes past torch is not seen."""
        return not any(tensor._version for tensor in self._tensors)

    def copied_to_device(self, tensor: torch.Tensor) -> None:
        """The script copies this tensor to a device; one that is of another batch does not matter."""
        self._copied_to_device.update(i for i, original in enumerate(self._originals) if original is tensor)

    def forget_originals(self) -> None:
        """Let go of the script's own tensors."""
        self._originals.clear()

    def on(self, device: torch.device) -> Kept:
        """Return this batch with those tensors on a device that the script copied there."""
        resident = Kept.__new__(Kept)
        resident.size = self.size
        resident._tensors, resident._originals, resident._copied_to_device = [], [], set()
        moves = {id(self._tensors[place]) for place in self._copied_to_device}

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            own = tensor.to(device) if id(tensor) in moves else tensor
            resident._tensors.append(own)
            return own

        resident._batch = _copied(self._batch, moved)
        return resident

    @property
    def moves(self) -> bool:
        """Return whether the script copied any of its tensors to a device."""
        return bool(self._copied_to_device)


def _check_tensor(tensor: torch.Tensor) -> None:
    if tensor.requires_grad:
        raise UnreplayableError("a tensor that requires a gradient")
    if not structure.is_dense(tensor):
        raise UnreplayableError("a sparse or nested tensor")


def _copied(
    value: Any, tensor: Callable[[torch.Tensor], torch.Tensor], array: Callable[[Any], Any] = np.ndarray.copy
) -> Any:
    """Return a copy of nested containers, with `tensor` of each tensor in them and `array` of each array.

    Raises:
        UnreplayableError: something is neither a tensor nor an array, a constant or a container of such.
    """
    try:
        return _Copying(tensor, array).of(value)
    except UnreplayableError:
        raise
    except Exception as error:  # a type of the script's may be copied in no such way, or lead back to itself
        raise UnreplayableError(f"what cannot be copied ({type(error).__name__})") from error


class _Copying:
    def __init__(self, tensor: Callable[[torch.Tensor], torch.Tensor], array: Callable[[Any], Any]) -> None:
        self._tensor, self._array = tensor, array
        self._left = MOST_VALUES

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, _CONSTANTS) and not isinstance(value, tuple):
            return value
        if isinstance(value, np.ndarray) and value.dtype != object:
            return self._array(value)
        if isinstance(value, (list, tuple)):
            self._count(value)
            items = [self.of(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, MutableMapping):
            self._count(value)
            return self._refill(copy.copy(value), value)
        if hasattr(value, "__dict__") and type(value).__module__ != "builtins":
            self._count(vars(value))
            fresh = copy.copy(value)
            self._refill(vars(fresh), vars(value))
            return fresh
        raise UnreplayableError(f"a {type(value).__qualname__}")

    def _count(self, values: Sized) -> None:
        self._left -= len(values)
        if self._left < 0:
            raise UnreplayableError(f"more than {MOST_VALUES:,} values")

    def _refill(self, fresh: MutableMapping[Any, Any], items: MutableMapping[Any, Any]) -> Any:
        for key, item in list(items.items()):
            fresh[key] = self.of(item)
        return fresh
