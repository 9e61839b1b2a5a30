"""Do all ranks train on the same samples? A digest of what enters the model, in steps that are not measured."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch

from dpdoctor.records import OWN_GENERATORS
from dpdoctor.worker.base import structure
from dpdoctor.worker.timing.batches import MOST_VALUES
from dpdoctor.worker.wrap.proof import bits

# So many bits must speak for it that ranks with the same labels have the same samples; so many labels are read.
LEAST_BITS, MOST_LABELS = 40.0, 1 << 14
_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16})
# Of larger tensors so many elements are read, evenly spread: the first ones may be the same black corner everywhere.
MOST_ELEMENTS = 1 << 20


class Entered:
    """Digests of the tensors that training forwards were called with, over all steps in which it was on.

    Noise that a script draws on each rank from the same seed is the same everywhere: all forwards of a step count.

    Attributes:
        is_on: whether this step is told.
        num_steps: how many were.
        digest: of all of them.
        varies: whether they were not all the same.
        is_anew: whether the looking began anew.
        labels: of batches that loaders gave; where none gave any, what the losses are held to.
        given: digest of the largest tensors in each of those batches that the thread which trains took, as they were
            when the next forward began: a script may receive another rank's batch into them.
        drawn: the generators that each of these steps drew from before its first forward, with their states then.

    Args:
        states: digests of the states of the generators that the script seeds, by name.
    """

    def __init__(self, states: Callable[[], Mapping[str, int]] = dict) -> None:
        self.is_on = False
        self.num_steps = 0
        self.digest = 0
        self._of_step = 0
        # By module, of forwards in eval mode that no backward pass has followed.
        self._doubted: dict[int, int] = {}
        self._first: int | None = None
        self.varies = self.is_anew = False
        self.labels = Labels()
        self.given = 0
        self._taken: list[torch.Tensor] = []
        self._is_handed = False
        self._states = states
        self._before: Mapping[str, int] = {}
        self.drawn: dict[str, int] = {}
        self._drawn_before: Collection[str] = ()

    def forward(self, tensors: Iterable[torch.Tensor], module: int = 0, *, in_eval_mode: bool = False) -> None:
        """Add what a forward of a module was called with; what torch.func maps over has no values of its own.

        One in eval mode trains only if a backward pass follows, before a forward of its module in training mode does.
        """
        self._note_given()
        doubted = self._doubted.pop(module, 0)
        if not (self._of_step or self._doubted or (in_eval_mode and doubted)):
            self._note_drawn()
        digest = _followed_by(doubted if in_eval_mode else self._of_step, tensors)
        if not in_eval_mode:
            self._of_step = digest
        elif digest:
            self._doubted[module] = digest

    def backward_ended(self) -> None:
        """A backward pass ended: forwards in eval mode before it have trained."""
        if self._doubted:
            self._of_step = hash((self._of_step, *self._doubted.values()))
            self._doubted.clear()

    def _note_drawn(self) -> None:
        """A step's first forward begins: what was drawn for it may have picked its samples."""
        drawn = {name: state for name, state in self._states().items() if state != self._before.get(name)}
        self.drawn = {name: state for name, state in drawn.items() if name in self._drawn_before or not self.num_steps}

    def handed(self, batch: Any, *, ahead: bool = False) -> None:
        """A loader handed out a batch for training; `ahead`: perhaps to a thread that fetches for later steps.

        How far ahead that is by now differs between ranks.
        """
        self._is_handed = True
        if not self.is_on:
            return
        self.labels.handed(batch)
        if not ahead:
            with torch._C.DisableTorchFunctionSubclass():
                readable = list(filter(_is_readable, structure.tensors(batch, MOST_VALUES)))
                # Beside the samples a batch may hold what differs all the same, such as the time. A mask is as large.
                largest = max(map(torch.Tensor.numel, readable), default=0)
                self._taken += (each for each in readable if each.numel() == largest)

    def _note_given(self) -> None:
        if self._taken:
            with torch._C.DisableTorchFunctionSubclass():
                self.given = _followed_by(self.given, self._taken)
            self._taken.clear()

    def held_to(self, targets: Iterable[torch.Tensor]) -> None:
        """A backward pass begins from losses with these targets; those drawn by what the script seeds are no labels."""
        if self.is_on and not self._is_handed and not self.drawn.keys() - {OWN_GENERATORS}:
            self.labels.held_to(targets)

    def step_ended(self) -> None:
        """End a step; one without tensors tells nothing."""
        self._note_given()
        if self._of_step:
            self.num_steps += 1
            self.digest = hash((self.digest, self._of_step))
            self._first = self._first or self._of_step
            self.varies |= self._of_step != self._first
        self._of_step = 0
        self._doubted.clear()
        self._before, self._drawn_before = self._states(), self.drawn

    def begin_anew(self) -> None:
        """Forget what entered: from now on it may be something else."""
        self.num_steps = self.digest = self._of_step = self.given = 0
        self._taken.clear()
        self._doubted.clear()
        self._first, self.varies, self.is_anew = None, False, True
        self.drawn, self._before = {}, self._states()
        self.labels.forget()

    def told(self) -> list[int]:
        """Return what the other ranks must know."""
        return [self.num_steps, self.digest, int(self.varies)]

    def told_drawn(self) -> int:
        """Return a digest of `drawn` and its states for the other ranks; 0: nothing was drawn in each step."""
        return hash(tuple(self.drawn.values())) if self.drawn else 0


class Labels:
    """Digests of the whole numbers in the batches that were handed out for training while Entered was on.

    Or of what losses were held to. What enters a model may differ by augmentation alone, where ranks draw that apart;
    its labels do not. `bits`: how unlikely it is that two ranks with other samples have the same ones. Labels that are
    all alike tell nothing, nor do those that are as in the batch before: they may be so in every batch.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.num, self.digest, self.bits = 0, 0, 0.0
        self._last: list[int] = []
        self._orders: defaultdict[tuple[int, torch.dtype, torch.Size], set[int]] = defaultdict(set)

    def handed(self, batch: Any) -> None:
        """Add a batch."""
        with torch._C.DisableTorchFunctionSubclass():
            given = structure.tensors(batch, MOST_VALUES)
            found = [_first(t) for t in given if t.dtype in _INTEGERS and _is_readable(t)]
            digests = [_digest(labels) for labels in found]
            if len(digests) == len(self._last):
                changed = (labels for labels, now, last in zip(found, digests, self._last, strict=True) if now != last)
                self.bits += sum(map(_bits, changed))
        self._last = digests
        self._add(digests)

    def held_to(self, targets: Iterable[torch.Tensor]) -> None:
        """Add what the losses of a backward pass are held to, floating-point numbers too.

        A script makes targets up, too: ones and zeros for what is real and what is not, or the places in a batch. Such
        are ordered by size as those of the same shape in a pass before, and tell nothing.
        """
        digests = []
        with torch._C.DisableTorchFunctionSubclass():
            for place, target in enumerate(t.detach() for t in targets if _is_readable(t)):
                numbers = target.float().view(torch.int32) if target.is_floating_point() else target
                if numbers.dtype not in _INTEGERS:
                    continue
                labels = _first(numbers)
                digests.append(_digest(labels))
                order = _digest(labels.unique(return_inverse=True)[1])
                orders = self._orders[place, numbers.dtype, numbers.shape]
                if orders and order not in orders:
                    self.bits += _bits(labels)
                orders.add(order)
        self._add(digests)

    def _add(self, digests: list[int]) -> None:
        self.num += 1
        self.digest = hash((self.digest, *digests))

    def told(self) -> list[int]:
        """Return what the other ranks must know."""
        return [self.num, self.digest, int(self.bits)]


def _followed_by(digest: int, tensors: Iterable[torch.Tensor]) -> int:
    """Return a digest to which these tensors are added; what torch.func maps over has no values of its own."""
    for tensor in tensors:
        if structure.is_mapped(tensor):
            continue
        for part in structure.parts(tensor.detach()):
            flat = part.flatten()
            some = flat[:: max(1, flat.numel() // MOST_ELEMENTS)]
            digest = hash((digest, tuple(part.shape), bits(some)))
    return digest


def _is_readable(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has values of its own, and no class of the script's that may refuse to be looked at."""
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or tensor.is_meta or tensor.is_quantized:
        return False
    return structure.is_dense(tensor) and not structure.is_mapped(tensor)


def _first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().flatten()[:MOST_LABELS]


def _digest(numbers: torch.Tensor) -> int:
    return hash(tuple(numbers.tolist()))  # numbers are hashed alike in each process


def _bits(labels: torch.Tensor) -> float:
    """Return how unlikely it is, in bits, that as many others of the same frequencies are just these."""
    shares = labels.unique(return_counts=True)[1].double() / max(1, labels.numel())
    return -labels.numel() * math.log2(float(shares.square().sum()) or 1.0)


def are_same_labels(everyone: list[list[int]]) -> bool:
    """Return whether several ranks were handed the same labels, which is no chance, given what each `told`."""
    num, _, bits_told = everyone[0]
    return len(everyone) > 1 and num > 1 and bits_told >= LEAST_BITS and all(told == everyone[0] for told in everyone)


def are_same(everyone: list[list[int]]) -> bool:
    """Return whether several ranks trained on the same samples, given what each `told`."""
    num_steps = everyone[0][0]
    return len(everyone) > 1 and num_steps > 1 and all(told == everyone[0] for told in everyone)


def copies(everyone: list[list[int]]) -> int:
    """Return how many ranks trained on the same samples, where there are groups of them; 1: none, 0: unlike groups."""
    groups = Counter(map(tuple, everyone))
    if len(groups) == 1 or not all(num_steps > 1 and varies for num_steps, _, varies in everyone):
        return 1
    sizes = set(groups.values())
    return sizes.pop() if len(sizes) == 1 else 0


def are_one(everyone: list[list[int]]) -> bool:
    """Return whether these are one and the same batch in every step."""
    _, _, varies = everyone[0]
    return are_same(everyone) and not varies
