"""When the script evaluates: from its first forward without gradients to what comes before it trains again."""

from __future__ import annotations

from collections.abc import Callable

import torch

# Without any loader, so many forwards make a pass: a single one is a generator's sample or a pseudo-label.
LEAST_FORWARDS = 2


class Evaluations:
    """Tells `ended` the begin and the end, in ns of `clock`, of every pass in which the script evaluates.

    A pass begins with a forward without gradients, or with the iteration of a loader without gradients that precedes
    it. It ends where the script turns to something else after its last forward: a loader with gradients enabled, a
    checkpoint, a training forward. It counts when a loader was asked for a batch meanwhile: a generator that runs
    without gradients inside a training step evaluates nothing.

    A module in eval mode whose forward has gradients evaluates, too, in a script that forgot `no_grad`, unless it calls
    backward before it fetches the next batch: then it trains.
    """

    def __init__(self, clock: Callable[[], int], ended: Callable[[int, int], None]) -> None:
        self._clock = clock
        self._ended = ended
        self._any_fetched = False
        self._forget()

    def _forget(self) -> None:
        self._iterated_ns: int | None = None
        self._begin_ns: int | None = None
        self._left_ns: int | None = None
        self._doubt_ns: int | None = None
        self._fetched = False
        self._forwards = 0

    def iterates(self) -> None:
        """The script begins to iterate a loader."""
        if self._begin_ns is None and not torch.is_grad_enabled():
            self._iterated_ns = self._iterated_ns or self._clock()
        self.leaves()

    def fetches(self) -> None:
        """The script asks a loader for a batch."""
        self._any_fetched = True
        if self._begin_ns is not None or self._iterated_ns is not None:
            self._fetched = True
            self._doubt_ns = None
            self.leaves()

    def leaves(self) -> None:
        """What begins now is no part of an evaluation, unless another of its forwards follows."""
        if self._begin_ns is not None and self._left_ns is None and torch.is_grad_enabled():
            self._left_ns = self._clock()

    def forward(self, *, with_gradients: bool = False) -> None:
        """A forward begins that is an evaluation's; `with_gradients`: only if no backward follows it."""
        now = self._clock()
        if self._begin_ns is None:
            self._begin_ns = self._iterated_ns or now
        if not with_gradients:
            self._doubt_ns = None
        elif self._doubt_ns is None:
            self._doubt_ns = self._left_ns or now
        self._left_ns = None
        self._forwards += 1

    def backward(self) -> None:
        """A backward pass ended."""
        if self._doubt_ns is not None:
            self._left_ns = self._doubt_ns
            self.trains()

    def trains(self) -> None:
        """A training forward begins, or the script ends: no evaluation goes on."""
        if self._begin_ns is not None:
            end_ns = self._left_ns or self._clock()
            if end_ns > self._begin_ns and self._is_pass():
                self._ended(self._begin_ns, end_ns)
            self._forget()
        elif self._iterated_ns is not None:
            self._forget()

    def _is_pass(self) -> bool:
        return self._fetched or (not self._any_fetched and self._forwards >= LEAST_FORWARDS)
