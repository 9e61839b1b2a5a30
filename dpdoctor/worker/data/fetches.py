"""The fetch of a batch, timed where it happens: in a worker process or in the training thread."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from dpdoctor.worker.data.look import Look
from dpdoctor.worker.facts.cpu import Waits

# Chains of transforms are timed in a fetcher's second batch, because the first pays for what is lazy, and then whenever
# looking takes no more than this share of the time since. To time one call of an entry takes about ENTRY_NS.
FIRST_LOOK = 1
MOST_LOOK_SHARE = 0.002
ENTRY_NS = 1000
# Of one batch in so many the bytes are counted: they are told as a mean.
BYTES_EVERY = 8
# A list longer than this is not walked through when its first element is no tensor, nor a container of them.
SHORT = 64


class Fetched(msgspec.Struct, frozen=True, gc=False):
    """What a fetch took, in ns; fields as in BatchRecord.

    `gap_queued_ns` is the wait of the thread that fetched since its fetch before. `num_items` is 0 unless this batch's
    transforms were timed: then `items_ns` is the time of its items without collate, and `transforms_ns` that of each
    entry of the chains.
    """

    begin_ns: int = 0
    fetch_ns: int = 0
    cpu_ns: int = 0
    collate_ns: int = 0
    num_bytes: int = 0
    queued_ns: int = 0
    gap_queued_ns: int = 0
    num_items: int = 0
    items_ns: int = 0
    transforms_ns: tuple[int, ...] = ()


UNKNOWN = Fetched()


class WatchedCollate:
    """A collate function that remembers when it was called, for how long, and with how many items."""

    def __init__(self, collate: Callable[[Any], Any], look: Look | None, clock: Callable[[], int]) -> None:
        self._collate = collate
        self._look = look
        self._clock = clock
        self.begin_ns = self.duration_ns = 0
        self.num_items = 1

    def __call__(self, items: Any) -> Any:
        if self._look is not None and self._look.is_open:
            self._look.close()
            self.num_items = len(items) if type(items) is list else 1
        self.begin_ns = self._clock()
        batch = self._collate(items)
        self.duration_ns = self._clock() - self.begin_ns
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
        look = self._look if self._look is not None and self._is_time_to(self._look) else None
        if look is not None:
            look.open()
            self._unlooked_ns = 0
        gap_queued_ns = self._waits.lap(self._clock())[1]
        # To ask the kernel takes time, which is no part of the fetch.
        begin_ns = self._clock()
        self._waits.skip(begin_ns)
        try:
            batch = self._fetcher.fetch(index)
        finally:
            if look is not None:
                look.close()
        end_ns = self._clock()
        cpu_ns, queued_ns = self._waits.lap(end_ns)
        fetch_ns, collate_ns = end_ns - begin_ns, self._collate.duration_ns
        self._unlooked_ns += fetch_ns
        size = 0 if self._number % BYTES_EVERY else num_bytes(batch)
        fetched = Fetched(begin_ns, fetch_ns, cpu_ns, collate_ns, size, queued_ns, gap_queued_ns)
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
