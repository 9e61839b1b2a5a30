"""The fetch of a batch, timed where it happens, in a worker process or in the training thread, with its transforms.

Transforms are known where a dataset keeps chains of them: lists and tuples of callables, as torchvision's Compose has
one. Found are attributes of the dataset, of datasets inside it (Subset, ConcatDataset) and of what these hold. Not
found are chains in closures, in nn.Sequential, in `__slots__`, and transforms that are attributes one by one.
"""

from __future__ import annotations

import functools
import threading
from collections import UserDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import msgspec
import numpy as np
import torch

from dpdoctor.worker.base import structure
from dpdoctor.worker.facts.cpu import Waits

# Chains of transforms are timed in a fetcher's second batch, because the first pays for what is lazy, and then whenever
# looking takes no more than this share of the time since. To time one call of an entry takes about ENTRY_NS.
FIRST_LOOK = 1
MOST_LOOK_SHARE = 0.002
ENTRY_NS = 1000
# One batch in so many is looked at: its bytes, which are told as a mean, and what its rows are.
LOOKED_AT_EVERY = 8
# A list longer than this is not walked through when its first element is no tensor, nor a container of them.
SHORT = 64
# A dataset may hold anything; the chains lie near it.
MOST_OBJECTS = 256
MOST_ELEMENTS = 64
_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType)
_NOT_HOLDERS = (type, ModuleType, *_FUNCTIONS, torch.Tensor, np.ndarray)


class Fetched(msgspec.Struct, frozen=True, gc=False):
    """What a fetch took, in ns; fields as in BatchRecord.

    `gap_queued_ns` is the wait of the thread that fetched since its fetch before. `num_items` is 0 unless this batch's
    transforms were timed: then `items_ns` is the time of its items without collate, and `transforms_ns` that of each
    entry of the chains. `item_per_row`: 1 where the shapes of items and batch were looked at, and tell that each row is
    one item.
    """

    begin_ns: int = 0
    fetch_ns: int = 0
    cpu_ns: int = 0
    collate_ns: int = 0
    num_bytes: int = 0
    queued_ns: int = 0
    gap_queued_ns: int = 0
    item_per_row: int = 0
    num_items: int = 0
    items_ns: int = 0
    transforms_ns: tuple[int, ...] = ()


UNKNOWN = Fetched()


class WatchedCollate:
    """A collate function that remembers when it was called, for how long, and with how many items.

    While it `compares`, also whether each row of what it returns is one of its items.
    """

    def __init__(self, collate: Callable[[Any], Any], look: Look | None, clock: Callable[[], int]) -> None:
        self._collate = collate
        self._look = look
        self._clock = clock
        self.begin_ns = self.duration_ns = 0
        self.num_items = 1
        self.compares = self.has_item_per_row = False

    def __call__(self, items: Any) -> Any:
        if self._look is not None and self._look.is_open:
            self._look.close()
            self.num_items = len(items) if type(items) is list else 1
        self.begin_ns = self._clock()
        batch = self._collate(items)
        self.duration_ns = self._clock() - self.begin_ns
        if self.compares:
            self.has_item_per_row = has_item_per_row(items, batch)
        return batch


class WatchedFetcher:
    """Stands in for one of torch's fetchers: `note` gets the number of each fetch, from 0, and what it took;
    `waits` are those of the thread that fetches.

    The fetcher does not know of it: a cycle would keep the script's dataset alive until the garbage collector runs.
    """

    def __init__(
        self,
        fetcher: Any,
        look: Look | None,
        note: Callable[[int, Fetched], None],
        clock: Callable[[], int],
        waits: Waits,
    ) -> None:
        self._fetcher = fetcher
        self._look = look
        self._note = note
        self._clock = clock
        self._number = -1
        self._unlooked_ns = 0
        self._waits = waits
        self._collate = fetcher.collate_fn = WatchedCollate(fetcher.collate_fn, look, clock)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fetcher, name)

    def fetch(self, index: Any) -> Any:
        """Return what the fetcher returns, or raise what it raises; a fetch that raises is counted, not noted."""
        self._number += 1
        if self._waits.lets_pass:
            return self._fetcher.fetch(index)
        look = self._look if self._look is not None and self._is_time_to(self._look) else None
        if look is not None:
            look.open()
            self._unlooked_ns = 0
        self._collate.compares = is_looked_at = self._number % LOOKED_AT_EVERY == 0
        _, gap_queued_ns, _, begin_ns = self._waits.lap()
        try:
            batch = self._fetcher.fetch(index)
        finally:
            if look is not None:
                look.close()
        cpu_ns, queued_ns, end_ns, _ = self._waits.lap()
        fetch_ns, collate_ns = end_ns - begin_ns, self._collate.duration_ns
        self._unlooked_ns += fetch_ns
        size = num_bytes(batch) if is_looked_at else 0
        item_per_row = int(is_looked_at and self._collate.has_item_per_row)
        fetched = Fetched(begin_ns, fetch_ns, cpu_ns, collate_ns, size, queued_ns, gap_queued_ns, item_per_row)
        if look is not None:
            fetched = msgspec.structs.replace(
                fetched,
                num_items=self._collate.num_items,
                items_ns=self._collate.begin_ns - begin_ns,
                transforms_ns=tuple(look.totals_ns),
            )
        self._note(self._number, fetched)
        return batch

    def _is_time_to(self, look: Look) -> bool:
        if self._number <= FIRST_LOOK:
            return self._number == FIRST_LOOK
        return self._unlooked_ns * MOST_LOOK_SHARE >= look.num_calls * ENTRY_NS


def num_bytes(batch: Any) -> int:
    """Return the bytes of all tensors in a batch; 0: none are found in its lists, tuples and dicts."""
    try:
        return _num_bytes(batch)
    except Exception:  # noqa: BLE001 - a tensor of a type of the script's may answer in any way
        return 0


def _num_bytes(batch: Any) -> int:
    if isinstance(batch, (list, tuple)):
        if len(batch) > SHORT and not isinstance(batch[0], (torch.Tensor, dict, UserDict, list, tuple)):
            return 0
        return sum(map(_num_bytes, batch))
    if isinstance(batch, torch.Tensor):
        return batch.nbytes
    if isinstance(batch, UserDict):
        batch = batch.data
    return sum(map(_num_bytes, dict.values(batch))) if isinstance(batch, dict) else 0


def has_item_per_row(items: Any, batch: Any) -> bool:
    """Return whether each row of a batch is one of its items, by their shapes: they are neither packed nor padded.

    Items may have been left out.
    """
    if type(items) is not list:
        return False
    try:
        of_item = next(filter(None, map(_first_shape, items)), None)
        of_batch = _first_shape(batch)
    except Exception:  # noqa: BLE001 - what the script's own classes answer is not known
        return False
    return of_item is not None and of_batch is not None and of_batch[1:] == of_item and of_batch[0] <= len(items)


def _first_shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of the first array in an item or a batch; None: none is near."""
    arrays = (found for found in structure.nested(value, SHORT) if isinstance(found, (torch.Tensor, np.ndarray)))
    first = next(arrays, None)
    return tuple(first.shape) if first is not None and first.ndim else None


class Look:
    """Times the entries of chains while it is open, without changing an entry.

    The list that holds them is exchanged meanwhile for one that is like it in every respect, but takes the time between
    handing out an entry and being asked for the next: whoever loops over it calls the entry then. `totals_ns` has one
    element for each entry of each chain, in order, and `num_calls` says how many calls were timed in the last look.

    Times are exclusive: of an entry that is itself a chain only what its own entries do not take.
    """

    def __init__(self, chains: Sequence[Chain], clock: Callable[[], int]) -> None:
        self._chains = chains
        self._clock = clock
        self._exchanged: list[tuple[Chain, Any, Any]] = []
        self._thread = 0
        self._turn = 0
        self._claimed_ns = 0
        self._firsts = [sum(len(chain.entries) for chain in chains[:index]) for index in range(len(chains))]
        self.totals_ns: list[int] = []
        self.num_calls = 0
        self.is_open = False

    def open(self) -> None:
        """Begin to time, from 0 on."""
        self.is_open = True
        self._turn += 1
        self._claimed_ns = self.num_calls = 0
        self._thread = threading.get_ident()
        self.totals_ns = [0] * sum(len(chain.entries) for chain in self._chains)
        for chain, first in zip(self._chains, self._firsts, strict=True):
            held = chain.held()
            if held is not None:
                timed = (_TimedList if type(held) is list else _TimedTuple)(held)
                timed.look, timed.first = self, first
                chain.attributes[chain.name] = timed
                self._exchanged.append((chain, held, timed))

    def close(self) -> None:
        """Stop timing and put the script's own lists back; nothing happens when it is closed."""
        self.is_open = False
        self._turn += 1
        while self._exchanged:
            chain, held, timed = self._exchanged.pop()
            # The script may have changed the list, or put another in its place, while it was looked at.
            if chain.attributes.get(chain.name) is timed:
                chain.attributes[chain.name] = held
            if type(held) is list and held != timed:
                held[:] = timed[:]

    def timed(self, entries: Iterator[Any], first: int) -> Iterator[Any]:
        """Hand out the entries of a chain and take the time until the next one is asked for."""
        if self._thread != threading.get_ident():
            yield from entries
            return
        turn = self._turn
        for position, entry in enumerate(entries, first):
            claimed_ns, begin_ns = self._claimed_ns, self._clock()
            yield entry
            if turn == self._turn and position < len(self.totals_ns):
                own_ns = self._clock() - begin_ns - (self._claimed_ns - claimed_ns)
                self.totals_ns[position] += own_ns
                self._claimed_ns += own_ns
                self.num_calls += 1


class _TimedList(list[Any]):
    look: Look
    first: int

    def __iter__(self) -> Iterator[Any]:
        return self.look.timed(list.__iter__(self), self.first)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (self[:],)


class _TimedTuple(tuple[Any, ...]):
    look: Look
    first: int

    def __iter__(self) -> Iterator[Any]:
        return self.look.timed(tuple.__iter__(self), self.first)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return tuple, (self[:],)


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """The list or tuple of callables that is `attributes[name]` of some object, and its entries when it was found."""

    attributes: dict[str, Any]
    name: str
    entries: tuple[Any, ...]

    def held(self) -> Any:
        """Return the list or tuple if it has the same entries still, else None."""
        found: Any = self.attributes.get(self.name)
        if type(found) not in (list, tuple) or len(found) != len(self.entries):
            return None
        return found if all(map(_is, found, self.entries)) else None

    def names(self) -> list[str]:
        """Return what to call each entry: its class, or the function that it is."""
        return [_entry_name(entry) for entry in self.entries]


def find_chains(dataset: Any) -> list[Chain]:
    """Return the chains of a dataset, the nearest first. No code of the script's runs while they are looked for."""
    chains: list[Chain] = []
    seen = {id(dataset)}
    objects = deque([dataset])
    while objects and len(seen) <= MOST_OBJECTS:
        attributes = _attributes_of(objects.popleft())
        for name, value in list(attributes.items()):
            if _is_chain(value):
                chains.append(Chain(attributes, name, tuple(value)))
            for inner in _may_hold_chains(value):
                if id(inner) not in seen:
                    seen.add(id(inner))
                    objects.append(inner)
    return chains


def _attributes_of(holder: Any) -> dict[str, Any]:
    if issubclass(type(holder), _NOT_HOLDERS) or not type(holder).__dictoffset__:
        return {}
    return cast("dict[str, Any]", object.__getattribute__(holder, "__dict__"))


def _is_chain(value: Any) -> bool:
    if type(value) not in (list, tuple) or not 0 < len(value) <= MOST_ELEMENTS:
        return False
    return all(callable(entry) and not issubclass(type(entry), type) for entry in value)


def _may_hold_chains(value: Any) -> list[Any]:
    """Return what of a value may hold chains: itself, or the elements of a list, tuple or dict."""
    if type(value) in (list, tuple):
        return list(value[:MOST_ELEMENTS])
    if type(value) is dict:
        return list(value.values())[:MOST_ELEMENTS]
    return [value] if type(value).__dictoffset__ else []


def _is(found: Any, entry: Any) -> bool:
    return found is entry


def _entry_name(entry: Any) -> str:
    if type(entry) is functools.partial:
        return _entry_name(entry.func)
    return str(entry.__name__ if type(entry) in _FUNCTIONS else type(entry).__name__)
