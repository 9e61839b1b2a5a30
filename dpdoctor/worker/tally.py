"""How many samples a step trained on."""

from __future__ import annotations

from collections import Counter

import msgspec


class Counted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one step consumed; the fields are StepRecord's."""

    samples_drawn: int
    samples_entered: int
    micro_batches: int
    epoch_edge: bool


class Tally:
    """Counts a batch when a training forward follows its fetch.

    Batches that only an evaluation saw are not counted, nor is a batch twice when the model runs twice on it.
    Loaders are known by the id that the caller gives them.
    """

    def __init__(self) -> None:
        self._pending: dict[int, int] = {}
        self._fresh = True
        self._drawn = self._entered = self._fetches = self._backwards = 0
        self._edge = False
        self._consumed: Counter[int] = Counter()
        self._steps = 0

    def fetched(self, loader: int, num_samples: int) -> None:
        """A batch of `num_samples` drawn indices was handed to the script; 0: the loader does not know."""
        self._pending[loader] = num_samples

    def epoch_began(self) -> None:
        """A loader was iterated anew."""
        self._edge = True

    def trained(self, num_entered: int) -> None:
        """A training forward began on `num_entered` samples."""
        for loader, size in self._pending.items():
            self._drawn += size
            self._fetches += 1
            self._consumed[loader] += 1
        self._pending.clear()
        if self._fresh:
            self._entered += num_entered
            self._fresh = False

    def evaluated(self) -> None:
        """A forward without gradients ran."""
        self._pending.clear()
        self._edge = True

    def backward(self) -> None:
        """A backward pass ended."""
        if not self._fresh:
            self._backwards += 1
            self._fresh = True

    def lap(self) -> Counted:
        """End a step: return what it consumed and begin the next."""
        counted = Counted(
            samples_drawn=self._drawn,
            samples_entered=self._entered,
            micro_batches=self._fetches or self._backwards,
            epoch_edge=self._edge,
        )
        self._drawn = self._entered = self._fetches = self._backwards = 0
        self._edge = False
        self._steps += 1
        return counted

    def main_loader(self) -> tuple[int, float] | None:
        """Return the loader that fed most and its batches per step; None when no loader fed the steps."""
        if not self._consumed or not self._steps:
            return None
        loader, batches = self._consumed.most_common(1)[0]
        return loader, batches / self._steps
