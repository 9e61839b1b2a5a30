"""Which part of the script's batches a rank takes: the script's own sampler, wrapped lazily."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import chain, islice
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler

# What a script that distributes itself does with its batches is its own affair.
OWN = "own"

Seeded = Callable[[], AbstractContextManager[None]]


def length_of(sized: Any) -> int | None:
    """Return the length of a sampler or a dataset of the script's; None: it has none, or asking it raises."""
    try:
        return len(sized)
    except Exception:  # noqa: BLE001 - code of the script's, which torch would not have run
        return None


class Draws:
    """What the samplers of this rank gave: `num` batches of whole numbers, and a digest of all their indices.

    Every rank draws the whole sequence, so that ranks with as many batches have one digest. They have not when a
    sampler goes on to draw from the global random state, and that has moved apart.
    """

    def __init__(self) -> None:
        self.num = 0
        self.digest = 0

    def noted(self, batch: Any) -> Any:
        """Add a batch, and return it; one of another kind is not: Python hashes text differently in each process."""
        if type(batch) is list and batch and type(batch[0]) is int:
            self.num += 1
            self.digest = hash((self.digest, *batch))
        return batch


class Shard:
    """A rank's share of an index sampler (DataLoader's batch sampler, or its sampler when it does not batch).

    per-device: rank r takes the script's batches r, r + N, ...; what is left over when N does not divide their number
    is dropped, so that all ranks take equally many. global: every batch is cut into N parts that differ by one sample
    at most and rank r takes part r; a batch of fewer than N samples goes whole to every rank. whole: every rank takes
    everything. own: everything, drawn when and as it is without us. The script's sampler is never copied into a list:
    it may be endless. The indices of all its batches are noted in `draws` and in `given`; None: nowhere. What is drawn
    while `is_whole` is true goes to every rank, whatever the rule. `collates`: the loader makes a batch of each list's
    items.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        rule: str,
        rank: int,
        world_size: int,
        *,
        seeded: Seeded,
        draws: Draws | None,
        given: deque[Any] | None = None,
        is_whole: Callable[[], bool] = lambda: False,
        collates: bool = True,
    ) -> None:
        self.sampler = sampler
        self.rule = rule
        self.rank = rank
        self.world_size = world_size
        self._seeded = seeded
        self._draws = draws
        self._given = given
        self._is_whole = is_whole
        self._collates = collates

    def __len__(self) -> int:
        length = len(self.sampler)  # type: ignore[arg-type]
        return length // self.world_size if self.rule == "per-device" else length

    def __iter__(self) -> Iterator[Any]:
        is_of_batches = isinstance(self.sampler, BatchSampler)
        return CountedIndices(self._share(), collates=self._collates, is_of_batches=is_of_batches)

    def _share(self) -> Iterator[Any]:
        if self.rule == OWN:
            # At once, as without us: one that shuffles then takes its random numbers before torch takes a seed.
            batches = iter(self.sampler)
            return self._noted(lambda: batches)
        batches = self._noted(self._seeded_first)
        if self.rule == "per-device":
            return chain(self._whole(batches), self._every_nth(batches))
        if self.rule == "global":
            return chain(self._whole(batches), map(self._part, batches))
        return batches

    def _seeded_first(self) -> Iterator[Any]:
        """Begin and draw the first batch with the same random numbers on every rank: samplers shuffle then."""
        with self._seeded():
            batches = iter(self.sampler)
            first = list(islice(batches, 1))
        return chain(first, batches)

    def _noted(self, begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Return the batches of what `begin` returns once the first is asked for; each is noted."""
        batches: Iterator[Any] = chain.from_iterable(begin() for _ in range(1))
        if self._draws is not None:
            batches = map(self._draws.noted, batches)
        return batches if self._given is None else map(self._note_given, batches)

    def _note_given(self, batch: Any) -> Any:
        assert self._given is not None
        self._given.extend(batch)
        return batch

    def _whole(self, batches: Iterator[Any]) -> Iterator[Any]:
        while self._is_whole():
            drawn = list(islice(batches, 1))
            if not drawn:
                return
            yield drawn[0]

    def _every_nth(self, batches: Iterator[Any]) -> Iterator[Any]:
        while len(group := list(map(_kept, islice(batches, self.world_size)))) == self.world_size:
            yield group[self.rank]

    def _part(self, batch: Any) -> Any:
        size = _size(batch) or 0
        if size < self.world_size:
            return batch
        return batch[self.rank * size // self.world_size : (self.rank + 1) * size // self.world_size]


def _kept(batch: Any) -> Any:
    """Return a batch as it is now: some samplers fill one and the same list for each."""
    return batch.copy() if isinstance(batch, (list, np.ndarray)) else batch


def _size(indices: Any) -> int | None:
    """Return the length of a batch of indices (list, tuple, array, tensor); None: this is one index of any kind."""
    if isinstance(indices, (str, bytes, Mapping)):
        return None
    try:
        return len(indices)
    except TypeError:  # an index, or an array or tensor of dimension 0, which has __len__ and refuses
        return None


class CountedIndices:
    """An iterator over batches of indices that remembers the size of each batch until it is asked for.

    Where the loader does not collate, a tuple, or two numbers, may be one index of the dataset's own, such as (start,
    stop), of nobody knows how many samples; two numbers are not where a BatchSampler gave them (`is_of_batches`).
    """

    def __init__(self, batches: Iterator[Any], *, collates: bool = True, is_of_batches: bool = False) -> None:
        self._batches = batches
        self._collates = collates
        self._is_of_batches = is_of_batches
        self.sizes: deque[int] = deque()

    def __iter__(self) -> CountedIndices:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        size = len(batch) if type(batch) is list else _size(batch) or 0
        is_index = not self._collates and (isinstance(batch, tuple) or (size == 2 and not self._is_of_batches))
        self.sizes.append(0 if is_index else size)
        return batch


def next_size(indices: Any) -> int:
    """Return the size of the oldest batch of CountedIndices not asked for yet; 0: not known, or of another iterator."""
    return indices.sizes.popleft() if isinstance(indices, CountedIndices) and indices.sizes else 0
