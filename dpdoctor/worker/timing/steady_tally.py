"""A tally that takes the short way while each step is like those before it: one batch, one forward, one backward.

The batch is a loader's, or the script's own of a shape that stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from msgspec.structs import replace

from dpdoctor.worker.base.structure import is_dense
from dpdoctor.worker.timing.batches import (
    LEAST_GONE,
    Batch,
    Look,
    Pass,
    Rows,
    StorageReference,
    address,
    identity,
    live_storage,
    live_storages,
)
from dpdoctor.worker.timing.tally import Counted, Tally

# So many steps alike, then the short way; after each one that was not, twice as many.
PATIENCE = 16
# A list of more is no batch of inputs and targets.
MOST_HELD = 8
_NONE, _FETCHED, _TRAINED, _BACKWARD, _STEPPED = range(5)


class SteadyTally(Tally):
    """Counts as Tally does, with fewer calls.

    A step that turns out to be of another kind is told to Tally from its beginning. One thing is lost then: of its
    first forward it is not known whether a backward pass came to it, where another forward follows before any. Such a
    step is taken for one at an epoch's edge, which no steady figure holds.

    Attributes:
        is_steady: whether steps were alike for some time, and are since, but for those in which a loader began.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        super().__init__()
        self._patience = patience
        self._alike = 0
        self._is_short = False
        self._stage = _NONE
        self._forward: dict[str, Any] = {}
        # The forward of which Tally was told, as long as no backward pass came.
        self._unfollowed: Pass | None = None
        self._loader = self._size = self._num_elements = 0
        # Where the batch lies, or itself where nobody asked yet; and what the model is called with, where that is it.
        self._references: dict[int, StorageReference] = {}
        self._held: tuple[Any, ...] = ()
        self._first: torch.Tensor | None = None
        # Batches that were trained on: loader, size, where they lie, and the number of the step.
        self._gone_by: list[tuple[int, int, dict[int, StorageReference], int]] = []
        self._most_gone = LEAST_GONE
        # Steps in a row that one loader fed alike and of which Tally's counters do not know yet, what each counted, and
        # in what they are alike: loader, samples, elements, and whether it is at an edge.
        self._num_alike = 0
        self._counted: Counted | None = None
        self._alike_in: tuple[int, int, int, bool] = (0, 0, 0, False)
        # Of batches that no loader gave: model, dtype and shape of the last, the steps in a row that counted alike, and
        # what each counted; whether the next may go the short way, and this one does.
        self._handmade: tuple[Any, ...] = ()
        self._num_handmade = 0
        self._handmade_counted: Counted | None = None
        self._is_handmade_short = self._is_handmade = False
        # Whether a batch that an evaluation fetched is still there: a model may be called with it, too.
        self._holds_others = False
        # Whether a loader began in this step.
        self._has_begun = False
        self.is_steady = False

    def fetched(
        self,
        loader: int,
        num_samples: int,
        *,
        ahead: bool = False,
        storages: Iterable[int] = (),
        references: dict[int, StorageReference] | None = None,
        for_training: bool = True,
    ) -> None:
        """As Tally's."""
        if references and not ahead and for_training and self._is_next(loader, num_samples):
            self._references = references
            return
        self._tell()
        super().fetched(
            loader,
            num_samples,
            ahead=ahead,
            storages=storages,
            references=references,
            for_training=for_training,
        )

    def handed(self, loader: int, num_samples: int, batch: Any, *, ahead: bool, for_training: bool) -> None:
        """As Tally's; the batch is held while its step lasts, and looked into only if nothing else tells of it."""
        is_list = type(batch) in {list, tuple} and len(batch) <= MOST_HELD
        is_plain = (is_list or type(batch) is torch.Tensor) and not ahead and for_training
        if is_plain and self._is_next(loader, num_samples):
            self._held = tuple(batch) if is_list else (batch,)
            return
        super().handed(loader, num_samples, batch, ahead=ahead, for_training=for_training)

    def _is_next(self, loader: int, num_samples: int) -> bool:
        """Return whether to go the short way with a batch that was fetched for training."""
        is_next = (
            self._is_short
            and self._stage == _NONE
            and num_samples > 0
            and loader in self._first_fed
            and not self._only_evaluated
        )
        if is_next:
            self._stage, self._loader, self._size = _FETCHED, loader, num_samples
        return is_next

    def _look(self) -> None:
        """Find out where the batch lies that is held."""
        if self._held:
            self._references, self._held = live_storages(self._held), ()

    def trained(
        self,
        num_entered: int,
        *,
        elements: int = 0,
        in_eval_mode: bool = False,
        storages: Iterable[int] = (),
        look: Callable[[], Look] = Look,
        samples: Callable[[], Rows | None] | None = None,
        call: tuple[int, object] | None = None,
        goes_on: bool = False,
        changes_input: bool = False,
    ) -> Pass | None:
        """As Tally's; the short way needs to be told nothing."""
        storages = set(storages)
        self._look()
        is_next = self._stage == _FETCHED and num_entered == self._size and not in_eval_mode
        if is_next and self._is_of(storages) and not (self._holds_others and self._pending.holds(storages)):
            self._stage = _TRAINED
            self._num_elements = elements
            self._forward = {"storages": storages, "call": call, "goes_on": goes_on, "changes_input": changes_input}
            return None
        self._tell()
        if self._unfollowed is not None:
            if self._unfollowed.is_of_nothing:
                self._unfollowed.followed()  # Tally gives up where a model is called on two batches at once
            if not self._edge:
                self._edge = True
                self._patience *= 2
        return super().trained(
            num_entered,
            elements=elements,
            in_eval_mode=in_eval_mode,
            storages=storages,
            look=look,
            samples=samples,
            call=call,
            goes_on=goes_on,
            changes_input=changes_input,
        )

    def repeats(self, module: int, first: torch.Tensor) -> bool:
        """As Tally's: this is the step's first forward, with the model, dtype and shape of the last steps."""
        handmade = (module, first.dtype, first.shape) if first.dim() and is_dense(first) else ()
        if handmade != self._handmade:
            self._handmade, self._num_handmade, self._is_handmade_short = handmade, 0, False
        return self._is_handmade_short and self._stage == _NONE

    def trained_as_before(self, first: torch.Tensor, call: tuple[int, object], *, alone: bool) -> bool:
        """As Tally's: it is called with the memory of the one batch that was fetched, and with as many samples.

        Or no loader counts, and `repeats` has told that it is.
        """
        if self._is_handmade_short and self._stage == _NONE and self._handmade == (call[0], first.dtype, first.shape):
            self._stage, self._is_handmade, self._size = _TRAINED, True, first.size(0)
            self._forward = {"call": (call[0], identity(first))}
            return True
        if self._holds_others and not alone:
            return False
        if self._stage != _FETCHED or not first.dim() or first.size(0) != self._size:
            return False
        for held in self._held:
            if held is first:
                break
        else:
            self._look()
            reference = self._references.get(address(first))
            if reference is None or reference.expired():
                return False
        self._stage, self._num_elements = _TRAINED, first.numel()
        self._first, self._forward = first, {"call": call}
        return True

    def _is_of(self, storages: set[int]) -> bool:
        """Return whether a forward is called with the batch's own memory."""
        return any(address in storages and not reference.expired() for address, reference in self._references.items())

    def backward(self, *, in_step: bool = False) -> None:
        """As Tally's."""
        if self._stage == _TRAINED and not in_step:
            self._stage = _BACKWARD
            return
        self._tell()
        self._unfollowed = None
        super().backward(in_step=in_step)

    def optimizer_stepped(self) -> None:
        """As Tally's."""
        if self._stage in {_BACKWARD, _STEPPED}:
            self._stage = _STEPPED
            return
        self._tell()
        if self._unfollowed is not None:
            self._unfollowed.followed()  # no backward pass came so far
            self._edge = True
        super().optimizer_stepped()

    def evaluated(self) -> None:
        """As Tally's."""
        self._tell()
        super().evaluated()

    def epoch_began(self, loader: int) -> None:
        """As Tally's."""
        if self._stage != _NONE:
            self._tell()
        self._has_begun = True
        super().epoch_began(loader)

    def copied(self, source: Iterable[int], target: Mapping[int, StorageReference]) -> None:
        """As Tally's."""
        source = set(source)
        self._look()
        if self._stage != _NONE and not source.isdisjoint(self._references):
            self._references.update(target)
        self._remember()
        super().copied(source, target)

    def feeding(self) -> frozenset[int]:
        """As Tally's."""
        self._count_alike()
        return super().feeding()

    def main_loader(self) -> tuple[int, float] | None:
        """As Tally's."""
        self._count_alike()
        return super().main_loader()

    def _count_alike(self) -> None:
        """Count the steps in a row that were alike."""
        number, (loader, size, *_) = self._num_alike, self._alike_in
        self._num_alike = 0
        if not number:
            return
        self._samples_of[loader] += number * size
        self._fed_since[loader] += number
        silence = self._steps - number + 1 - self._last_fed[loader]
        self._most_silent[loader] = max(self._most_silent[loader], silence)
        self._last_fed[loader] = self._steps

    def _tell(self) -> None:
        """Tell Tally what this step was so far: it goes the long way from here on."""
        self._count_alike()
        stage, self._stage = self._stage, _NONE
        self._is_short = self._is_handmade_short = False
        self._remember()
        if stage == _NONE:
            return
        self._alike = self._num_handmade = 0
        training = self._tell_of_handmade() if self._is_handmade else self._tell_of_fetched(stage)
        self._unfollowed = training if stage == _TRAINED else None
        if stage >= _BACKWARD:
            super().backward()
        if stage >= _STEPPED:
            super().optimizer_stepped()

    def _tell_of_fetched(self, stage: int) -> Pass | None:
        """Tell of the batch and, if there was one, of the forward, which is returned."""
        self._look()
        super().fetched(self._loader, self._size, references=self._references)
        if stage < _TRAINED:
            return None
        if self._first is not None:
            self._forward["storages"], self._first = (address(self._first),), None
        return super().trained(self._size, elements=self._num_elements, **self._forward)

    def _tell_of_handmade(self) -> Pass | None:
        """Tell of the forward on a batch that no loader gave, and return it."""
        told, counted, self._is_handmade = self._told, self._handmade_counted, False
        assert counted is not None
        return super().trained(self._size, elements=counted.elements, samples=lambda: told, **self._forward)

    def _remember(self) -> None:
        """Tell Tally of the batches that were trained on and are gone: the script may hold them."""
        gone, self._gone_by = self._gone_by, []
        for loader, size, references, lap in gone:
            storages = set(references)
            self._pending.gone_by(
                Batch(loader=loader, size=size, storages=storages, references=references, counted_in=lap)
            )

    def lap(self) -> Counted:
        """As Tally's."""
        has_begun, self._has_begun = self._has_begun, False
        self.was_short = self._stage >= _BACKWARD and not self._is_interrupted
        if not self.was_short:
            return self._long_lap(has_begun=has_begun)
        if self._is_handmade:
            return self._handmade_lap()
        loader, size, edge = self._loader, self._size, self._edge
        # Of what is held nothing but what the model is called with is known again.
        lies_at = self._references if self._first is None or not self._held else live_storage(self._first)
        self._gone_by.append((loader, size, lies_at, self._laps))
        if len(self._gone_by) > self._most_gone:
            self._gone_by = [gone for gone in self._gone_by if not all(map(StorageReference.expired, gone[2].values()))]
            self._most_gone = LEAST_GONE + 2 * len(self._gone_by)
        alike = loader, size, self._num_elements, edge
        counted = self._counted
        if counted is None or alike != self._alike_in:
            self._count_alike()
            self._alike_in = alike
            self._most_entered = max(self._most_entered, size)
            counted = self._counted = Counted(
                samples_drawn=size,
                samples_entered=size,
                micro_batches=1,
                epoch_edge=edge,
                elements=self._num_elements,
                samples_handed=size,
                reconciled=True,
            )
        self._num_alike += 1
        self._steps += 1
        self._laps += 1
        self._stage, self._references, self._edge = _NONE, {}, False
        self._held, self._first = (), None
        return counted

    def _long_lap(self, *, has_begun: bool) -> Counted:
        self._tell()
        is_alike, is_handmade = self._is_alike(), self._is_handmade_alike()
        counted = super().lap()
        is_alike &= counted.reconciled
        self._note_handmade(counted, is_alike=is_handmade)
        self._alike = self._alike + (not counted.epoch_edge) if is_alike else 0
        is_at_rest = self._is_at_rest()
        self._holds_others = self._pending.has_live
        self._is_short = is_at_rest and self._alike >= self._patience and self.loaders_count and not self._undrawn
        self._is_handmade_short = is_at_rest and self._num_handmade >= self._patience and self._is_without_loader()
        is_usual = has_begun or ((is_alike or is_handmade) and not counted.epoch_edge)
        self.is_steady = self._is_short or self._is_handmade_short or (self.is_steady and is_usual)
        return counted

    def _is_alike(self) -> bool:
        """Return whether the step that ends is one that the short way can tell."""
        self._settle()
        if len(self._settled) != 1 or self._passes or self._backwards != 1 or self._is_interrupted:
            return False
        (training,) = self._settled
        if len(training.batches) != 1 or training.again or not training.is_known:
            return False
        (batch,) = training.batches
        return bool(batch.references) and batch.for_training and training.rows == batch.size == self._drawn > 0

    def _is_at_rest(self) -> bool:
        """Return whether nothing of the steps before may tell in the next one; what an evaluation fetched does not."""
        pending = self._pending
        is_quiet = not (self._only_evaluated or self._doubtful or self._passes or self._turns or self._entered)
        return is_quiet and self._uncounted is None and not (pending.num_unsure or pending.any_for_training)

    def _is_without_loader(self) -> bool:
        """Return whether no loader has fed training, and no batch is there that a model might be fed."""
        return not (self._last_fed or self._holds_others or self._pending.has_live_gone)

    def _is_handmade_alike(self) -> bool:
        """Return whether in the step that ends one model was called once, with what no loader gave."""
        if len(self._settled) != 1 or self._passes or self._backwards != 1 or self._is_interrupted or self._drawn:
            return False
        if not self._handmade or not self._settled[0].is_of_nothing:
            return False
        (training,), (module, _, shape) = self._settled, self._handmade
        called, _ = training.call or (None, None)
        return called == module and (training.rows, training.elements) == (shape[0], shape.numel())

    def _note_handmade(self, counted: Counted, *, is_alike: bool) -> None:
        """Count the steps in a row without a loader that are alike."""
        before = self._handmade_counted
        self._handmade_counted = replace(counted, epoch_edge=False) if is_alike else None
        self._num_handmade = self._num_handmade + 1 if is_alike and before == self._handmade_counted else int(is_alike)

    def _handmade_lap(self) -> Counted:
        counted = self._handmade_counted
        assert counted is not None
        self._steps += 1
        self._laps += 1
        self._undrawn += 1
        edge, self._edge = self._edge, False
        self._stage, self._is_handmade = _NONE, False
        return replace(counted, epoch_edge=True) if edge else counted
