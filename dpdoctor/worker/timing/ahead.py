"""Batches that a thread of the script's fetches ahead, by a queue's length, and the step that trains on each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from dpdoctor.worker.timing.batches import Batch, StorageReference

# Queues of scripts hold fewer.
MOST_AHEAD_IN_THREADS = 64
# After so many steps in a row on rows of no known batch the script makes others of what was fetched. Fewer may be on
# batches that counted when they were fetched.
MOST_OF_NOTHING = 3


class Ahead:
    """What threads have fetched for training and nobody trained on yet, oldest first.

    A batch counts when it is fetched, until a forward pass is called with the tensors of one: from then on each counts
    in the step that trains on it. Else the last steps of an epoch count less than they train on, and the first one of
    the next, which no steady figure holds, more. Where what enters is no batch's any more, they count as before.

    Attributes:
        is_followed: whether batches count when they are trained on.
    """

    def __init__(self) -> None:
        # Threads add to it at any time.
        self._batches: deque[Batch] = deque(maxlen=MOST_AHEAD_IN_THREADS)
        self._is_lost = False
        # Steps in a row that trained on rows of no known batch.
        self._num_of_nothing = 0
        self.is_followed = False

    def add(self, batch: Batch) -> None:
        """A thread fetched a batch."""
        if not self._is_lost:
            self._batches.append(batch)

    def take(self, storages: Iterable[int]) -> list[Batch]:
        """Return the batches that lie there, which are gone from here then; a loader's older ones were passed over."""
        waiting = tuple(self._batches)
        if not waiting:
            return []
        places = tuple(storages)
        taken = [batch for batch in waiting if any(map(batch.lies_at, places))]
        for last in taken:
            for batch in waiting[: waiting.index(last) + 1]:
                if batch.loader == last.loader and batch in self._batches:
                    self._batches.remove(batch)
        self.is_followed |= bool(taken)
        if taken:
            self._num_of_nothing = -1  # this step is none
        return taken

    def copied(self, source: Iterable[int], target: Mapping[int, StorageReference]) -> None:
        """The script copied a tensor to a device: it may train on the copy."""
        places = tuple(source)
        for batch in tuple(self._batches):
            if any(map(batch.lies_at, places)):
                batch.storages.update(target)
                batch.references.update(target)

    def step_ended(self, *, is_of_nothing: bool) -> list[Batch]:
        """A step ended; `is_of_nothing`: it trained on rows of which no batch is known.

        Return the batches that are to be counted now: those which wait, where the script makes others of them.
        """
        self._num_of_nothing = self._num_of_nothing + 1 if is_of_nothing and self.is_followed else 0
        if self._num_of_nothing < MOST_OF_NOTHING:
            return []
        self.is_followed, self._is_lost = False, True
        waiting = [batch for batch in tuple(self._batches) if batch.counted_in is None]
        self._batches.clear()
        return waiting
