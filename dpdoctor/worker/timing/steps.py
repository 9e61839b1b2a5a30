"""What a step is: the outermost `step` of the reference optimizer, whatever that optimizer does with it."""

from __future__ import annotations

from collections import Counter

# Stands for the optimizer of a script that has built none. A step of one that it builds later takes its place at once,
# as no backward pass counts as a step from then on.
NO_OPTIMIZER = -1
# So many steps of others without one of the reference mean that the script has moved on (a pre-fit has ended).
SILENT_AFTER = 200
# Of an optimizer that was built since the reference's last step fewer are enough, where the reference is never silent:
# a fold of a cross validation has its own. Inner loops with an optimizer for each batch make it silent in every step.
REPLACED_AFTER = 8
TIMES_SILENT = 4


class StepCounter:
    """Follows nested and interleaved optimizer steps.

    Optimizers are known by their order of creation, alike on every rank of one script, so that all ranks agree on
    the reference without talking. A GradScaler's step encloses its optimizer's and counts even when it skips it.

    Attributes:
        num_passes: how many backward passes ran inside of the step that began last, as its closure was evaluated.
        under_way: the steps that have begun and not ended, the outermost first; while there is one, a closure runs.
        num_replaced: how often an optimizer that the script built later took the place of the reference, or an older
            one that outlives those which are built for each batch. `replaced_after`: the steps of the one before it.
    """

    def __init__(self) -> None:
        self.under_way: list[tuple[int, bool]] = []
        self._counts: Counter[int] = Counter()
        # The steps that have ended; of those the last of each optimizer, and the last of any newcomer.
        self._num_steps = self._newcomer_at = 0
        self._last_step: dict[int, int] = {}
        self._taken: Counter[int | None] = Counter()
        self._others = 0
        self._inside = 0
        self._built = self._built_before = self._longest_silence = 0
        self.num_replaced = self.replaced_after = self.num_passes = 0
        self.reference: int | None = None

    def built(self, optimizer: int) -> None:
        """The script built an optimizer, or a copy of one."""
        self._built = max(self._built, optimizer + 1)

    def enter(self, optimizer: int, *, scaled: bool = False) -> None:
        """A step of `optimizer` begins; `scaled`: it is GradScaler.step that begins.

        Entering the same one again means that an exception ended it before: it is forgotten.
        """
        token = (optimizer, scaled)
        if token in self.under_way:
            del self.under_way[self.under_way.index(token) :]
        self.under_way.append(token)
        self.num_passes = 0

    def backward_ended(self) -> bool:
        """A backward pass ended; return whether it ran inside of a step."""
        in_step = bool(self.under_way)
        self.num_passes += in_step
        return in_step

    def leave(self, optimizer: int, *, scaled: bool = False) -> bool:
        """A step ends. Return True when it is one of the reference's, and the outermost."""
        token, under_way = (optimizer, scaled), self.under_way
        if token not in under_way:
            return False  # a subclass's step, counted when the base class's step that it called ended
        while under_way.pop() != token:
            pass  # an exception ended it
        if under_way:
            self._inside += 1
            if self._inside >= SILENT_AFTER:
                under_way.clear()  # an exception ended the outer one, and nobody tried it again
            return False
        self._inside = 0
        self._num_steps += 1
        self._taken[optimizer] += 1
        if optimizer != self.reference and not self._takes_over(optimizer):
            return False
        self._last_step[optimizer] = self._num_steps
        self._counts[optimizer] += 1
        if self._others:
            self._longest_silence = max(self._longest_silence, self._others)
            self._others = 0
        self._built_before = self._built
        return True

    def _takes_over(self, optimizer: int) -> bool:
        """Note a step of another optimizer than the reference; return whether it is the reference from this step on."""
        if self.reference is None or self.reference == NO_OPTIMIZER:
            self.num_replaced += self.reference is not None
            self._replace(optimizer)
            return True
        is_new = optimizer >= self._built_before
        if self._outlives(optimizer, self.reference, is_new=is_new):
            self._replace(optimizer)
            self.num_replaced += 1
            return True
        self._others += 1
        patience = REPLACED_AFTER + TIMES_SILENT * self._longest_silence
        if self._others >= (min(patience, SILENT_AFTER) if is_new else SILENT_AFTER):
            self._replace(optimizer)
            self._others = self._longest_silence = 0
            self._built_before = self._built
            self.num_replaced += is_new
        return False

    def _outlives(self, optimizer: int, reference: int, *, is_new: bool) -> bool:
        """Note a step; return whether its optimizer outlives the reference.

        It is older, and steps for the second time since the reference did, with steps of a newcomer in between.
        """
        before, self._last_step[optimizer] = self._last_step.get(optimizer, 0), self._num_steps
        if is_new:
            self._newcomer_at = self._num_steps
            return False
        if optimizer < reference:
            self._longest_silence = max(self._longest_silence, self._num_steps - 1 - before)
            if self._num_steps - 1 - self._others < before < self._newcomer_at:
                return True
        self._counts[optimizer] += 1  # those of newcomers would be held against fewer of the reference
        return False

    def _replace(self, optimizer: int) -> None:
        """Make another optimizer the reference."""
        self.replaced_after = self._taken[self.reference]
        self.reference = optimizer
        self._counts = Counter({optimizer: self._counts[optimizer]})  # the others have had their time

    def elect(self) -> bool:
        """Make the optimizer with most steps since the last election the reference; return whether it changed."""
        counts, self._counts = self._counts, Counter()
        if not counts or self.reference is None:
            return False
        best = max(counts, key=lambda optimizer: (counts[optimizer], optimizer == self.reference))
        changed = best != self.reference
        self.reference = best
        return changed
