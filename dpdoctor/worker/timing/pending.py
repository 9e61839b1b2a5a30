"""Which of the batches that were fetched the script trains on: a forward pass takes them from here."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

# Frameworks fetch one batch or two ahead; what is older when a step ends was passed over.
MOST_AHEAD = 2
# A batch may be an object that leads to anything, such as the whole data set: no more is looked at than this.
MOST_VALUES = 1024


def storages(value: Any) -> set[int]:
    """Return where the data of the tensors in nested containers and objects lies, by address; the nearest ones."""
    found: set[int] = set()
    values = deque([value])
    for _ in range(MOST_VALUES):
        if not values:
            break
        value = values.popleft()
        if isinstance(value, torch.Tensor):
            # Sparse tensors, and those inside of torch.func's transforms, have no storage.
            with contextlib.suppress(RuntimeError, NotImplementedError):
                found.add(value.untyped_storage().data_ptr())
        else:
            values.extend(islice(_held(value), MOST_VALUES))
    found.discard(0)
    return found


def _held(value: Any) -> Iterable[Any]:
    if isinstance(value, (str, bytes, int, float, torch.nn.Module)):
        return ()
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else getattr(value, "__dict__", {}).values()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """What a loader gave. `storages`: where its tensors' data lies; `for_training`: fetched with gradients enabled."""

    loader: int
    size: int
    storages: set[int] = field(default_factory=set)
    for_training: bool = True


class Pending:
    """Batches that were fetched and not trained on yet, by loader and oldest first.

    A forward pass takes the batches whose tensors it is called with. Where the script made other tensors of them, only
    numbers can tell: the one batch that there is, those that have as many samples together as entered, or the oldest
    that has as many alone.

    Attributes:
        num_known: batches that were taken by their tensors.
        num_taken: all that were taken.
        passed: batches by loader that the script fetched, but trained on later ones instead.
        num_unsure: forward passes for which several batches were there and none fitted; they took all.
    """

    def __init__(self) -> None:
        self._queues: dict[int, deque[Batch]] = {}
        self._holders: dict[int, Batch] = {}
        self.num_known = self.num_taken = self.num_unsure = 0
        self.passed: Counter[int] = Counter()

    def add(self, batch: Batch) -> None:
        """A batch was handed to the script; memory of an older one that it lies in was free again."""
        self._queues.setdefault(batch.loader, deque()).append(batch)
        self._holders.update(dict.fromkeys(batch.storages, batch))
        if not batch.for_training:
            self._shorten(batch.loader)

    def copied(self, source: set[int], target: set[int]) -> None:
        """The script copied a tensor to a device: it may train on the copy."""
        for batch in {holder for storage in source if (holder := self._holders.get(storage)) is not None}:
            batch.storages.update(target)
            self._holders.update(dict.fromkeys(target, batch))

    def drop(self, loader: int) -> None:
        """Nobody trains any more on what this loader gave."""
        for batch in self._queues.pop(loader, ()):
            self._forget(batch)

    def clear(self) -> None:
        """Nobody trains any more on anything that was fetched."""
        self._queues.clear()
        self._holders.clear()

    def step_ended(self) -> None:
        """Keep what may have been fetched ahead, and no more."""
        for loader in self._queues:
            self._shorten(loader)

    def take(self, rows: int, storages: Iterable[int], *, is_first: bool) -> list[Batch]:
        """Return the batches of a forward pass on so many rows, which are gone from here then.

        `is_first`: since the last backward pass. A later one trains on the same batches, or on none: it takes only what
        it is called with.
        """
        held = (self._holders.get(storage) for storage in storages)
        taken = list(dict.fromkeys(batch for batch in held if batch is not None))
        self.num_known += len(taken)
        if taken:
            for batch in taken:
                self._pass_over(batch)
        elif is_first:
            taken = [batch for loader in self._queues for batch in self._fitting(loader, rows)]
        for batch in taken:
            self._queues[batch.loader].remove(batch)
            self._forget(batch)
        self.num_taken += len(taken)
        return taken

    def _pass_over(self, batch: Batch) -> None:
        """Let go of what the loader gave before: a loader's batches are trained on in their order, or never."""
        queue = self._queues[batch.loader]
        while queue and queue[0] is not batch and queue[0].for_training:
            self._forget(queue.popleft())
            self.passed[batch.loader] += 1

    def _fitting(self, loader: int, rows: int) -> list[Batch]:
        found = [batch for batch in self._queues[loader] if batch.for_training]
        if len(found) < 2 or sum(batch.size for batch in found) == rows:
            return found
        alike = [batch for batch in found if batch.size == rows]
        self.num_unsure += not alike
        return alike[:1] or found

    def _shorten(self, loader: int) -> None:
        queue = self._queues[loader]
        while len(queue) > MOST_AHEAD:
            self._forget(queue.popleft())

    def _forget(self, batch: Batch) -> None:
        for storage in batch.storages:
            if self._holders.get(storage) is batch:
                del self._holders[storage]
