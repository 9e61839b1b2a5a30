"""When the script evaluates, or runs its model without gradients for another purpose, before it trains again."""

from __future__ import annotations

from collections.abc import Callable

import torch

EVALUATION, INFERENCE = "evaluation", "inference"


class Evaluations:
    """Tells `ended` the kind, the begin and the end, in ns of `clock`, of every pass of forwards without gradients.

    A pass begins with a forward without gradients, or with the iteration of a loader without gradients that precedes
    it. It ends where the script turns to something else after its last forward: a loader with gradients enabled, a
    checkpoint, a training forward.

    It is an evaluation when it reads a loader of its own: one that is asked with gradients off, or that is asked for
    another batch after a forward, upon which a forward follows or the loader ends. Else it is an inference, of which
    nobody knows what for: a rollout or generated text that is trained on next, a generator's sample for its critic, an
    evaluation of tensors that lie in memory.

    A module in eval mode whose forward has gradients evaluates, too, in a script that forgot `no_grad`, unless it calls
    backward before it fetches the next batch: then it trains.

    Attributes:
        doubt_ns: since when it is not known whether a forward with gradients trains or evaluates; None: it is.
    """

    def __init__(self, clock: Callable[[], int], ended: Callable[[str, int, int], None]) -> None:
        self._clock = clock
        self._ended = ended
        self._source: int | None = None
        self._reads_aside = False
        self._forget()

    def _forget(self) -> None:
        self._iterated_ns: int | None = None
        self._begin_ns: int | None = None
        self._left_ns: int | None = None
        self.doubt_ns: int | None = None
        self._asked = self._reads = False

    @property
    def is_on(self) -> bool:
        """Return whether the script has run a forward without gradients and not turned to something else since.

        Or read a loader without gradients, as for another model: an average of the weights that is evaluated.
        """
        return self._reads_aside or (self._begin_ns is not None and self._left_ns is None)

    def iterates(self) -> None:
        """The script begins to iterate a loader."""
        if self._begin_ns is None and not torch.is_grad_enabled():
            self._iterated_ns = self._iterated_ns or self._clock()
        self.leaves()

    def fetches(self, iterator: int = 0) -> None:
        """The script asks an iterator over a loader, known by this number, for a batch."""
        self._reads_aside = not torch.is_grad_enabled()
        if self._begin_ns is None:
            self._source = iterator
        if self._begin_ns is not None or self._iterated_ns is not None:
            self._asked |= iterator == self._source
            self._reads |= not torch.is_grad_enabled()
            self.doubt_ns = None
            self.leaves()

    def ran_out(self, iterator: int = 0) -> None:
        """The script asked an iterator that had no batch left."""
        self._reads |= self._begin_ns is not None and iterator == self._source

    def leaves(self) -> None:
        """What begins now is no part of an evaluation, unless another of its forwards follows."""
        if self._begin_ns is not None and self._left_ns is None and torch.is_grad_enabled():
            self._left_ns = self._clock()

    def forward(self, *, with_gradients: bool = False) -> None:
        """A forward begins that is an evaluation's; `with_gradients`: only if no backward follows it."""
        now = self._clock()
        if self._begin_ns is None:
            self._begin_ns = self._iterated_ns or now
        else:
            self._reads |= self._asked
        if not with_gradients:
            self.doubt_ns = None
        elif self.doubt_ns is None:
            self.doubt_ns = self._left_ns or now
        self._left_ns = None

    def backward(self) -> None:
        """A backward pass ended."""
        if self.doubt_ns is not None:
            self._left_ns = self.doubt_ns
            self.trains()

    def trains(self) -> None:
        """A training forward begins, or the script ends: no evaluation goes on."""
        if self._begin_ns is not None:
            end_ns = self._left_ns or self._clock()
            if end_ns > self._begin_ns:
                self._ended(EVALUATION if self._reads else INFERENCE, self._begin_ns, end_ns)
            self._forget()
        elif self._iterated_ns is not None:
            self._forget()
        self._source, self._reads_aside = None, False
