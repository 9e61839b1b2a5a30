"""A batch of the script's loader, kept so that it can be given to the script again."""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableMapping, Sized
from typing import Any

import numpy as np
import torch

from dpdoctor.worker.base import structure

_CONSTANTS = (str, bytes, int, float, complex, np.generic, type(None), torch.device, torch.dtype)
# An object of the script's may lead to all its data: a batch of more values is not given twice.
MOST_VALUES = 1 << 16


class UnreplayableError(Exception):
    """A batch holds something that cannot be given twice; the message says what."""


def num_bytes(batch: Any) -> int:
    """Return the memory that the tensors of a batch would take, kept; nothing is copied but what holds them.

    Raises:
        UnreplayableError: it cannot be kept.
    """
    sizes: list[int] = []

    def measure(tensor: torch.Tensor) -> torch.Tensor:
        _check(tensor)
        sizes.append(tensor.nbytes)
        return tensor

    def leave(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        sizes.append(array.nbytes)
        return array

    _copied(batch, measure, leave)
    return sum(sizes)


class Kept:
    """A copy of one batch of `size` drawn indices, of which `give` returns as many batches as are asked for.

    Containers and arrays are copied for each, so that the script may change them; tensors are the same ones every
    time, and `is_intact` says whether none was changed.

    Raises:
        UnreplayableError: the batch holds something else.
    """

    def __init__(self, batch: Any, size: int) -> None:
        self.size = size
        self._tensors: list[torch.Tensor] = []
        self._originals: list[torch.Tensor] = []
        self._copied_to_device: set[int] = set()
        self._batch = _copied(batch, self._own)

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        _check(tensor)
        own = tensor.clone()
        own = own.pin_memory() if tensor.is_pinned() else own
        self._originals.append(tensor)
        self._tensors.append(own)
        return own

    def give(self) -> Any:
        """Return the batch."""
        return _copied(self._batch, lambda tensor: tensor)

    @property
    def is_intact(self) -> bool:
        """Return whether no tensor was changed since it was kept; what goes past torch is not seen."""
        return not any(tensor._version for tensor in self._tensors)

    def copied_to_device(self, tensor: torch.Tensor) -> None:
        """The script copies this tensor to a device; one that is of another batch does not matter."""
        self._copied_to_device.update(i for i, original in enumerate(self._originals) if original is tensor)

    def forget_originals(self) -> None:
        """Let go of the script's own tensors."""
        self._originals.clear()

    def on(self, device: torch.device) -> Kept:
        """Return this batch with those tensors on a device that the script copied there."""
        resident = Kept.__new__(Kept)
        resident.size = self.size
        resident._tensors, resident._originals, resident._copied_to_device = [], [], set()
        moves = {id(self._tensors[place]) for place in self._copied_to_device}

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            own = tensor.to(device) if id(tensor) in moves else tensor
            resident._tensors.append(own)
            return own

        resident._batch = _copied(self._batch, moved)
        return resident

    @property
    def moves(self) -> bool:
        """Return whether the script copied any of its tensors to a device."""
        return bool(self._copied_to_device)


def _check(tensor: torch.Tensor) -> None:
    if tensor.requires_grad:
        raise UnreplayableError("a tensor that requires a gradient")
    if not structure.is_dense(tensor):
        raise UnreplayableError("a sparse or nested tensor")


def _copied(
    value: Any, tensor: Callable[[torch.Tensor], torch.Tensor], array: Callable[[Any], Any] = np.ndarray.copy
) -> Any:
    """Return a copy of nested containers, with `tensor` of each tensor in them and `array` of each array.

    Raises:
        UnreplayableError: something is neither a tensor nor an array, a constant or a container of such.
    """
    try:
        return _Copying(tensor, array).of(value)
    except UnreplayableError:
        raise
    except Exception as error:  # a type of the script's may be copied in no such way, or lead back to itself
        raise UnreplayableError(f"what cannot be copied ({type(error).__name__})") from error


class _Copying:
    def __init__(self, tensor: Callable[[torch.Tensor], torch.Tensor], array: Callable[[Any], Any]) -> None:
        self._tensor, self._array = tensor, array
        self._left = MOST_VALUES

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, _CONSTANTS) and not isinstance(value, tuple):
            return value
        if isinstance(value, np.ndarray) and value.dtype != object:
            return self._array(value)
        if isinstance(value, (list, tuple)):
            self._count(value)
            items = [self.of(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if isinstance(value, MutableMapping):
            self._count(value)
            return self._refill(copy.copy(value), value)
        if hasattr(value, "__dict__") and type(value).__module__ != "builtins":
            self._count(vars(value))
            fresh = copy.copy(value)
            self._refill(vars(fresh), vars(value))
            return fresh
        raise UnreplayableError(f"a {type(value).__qualname__}")

    def _count(self, values: Sized) -> None:
        self._left -= len(values)
        if self._left < 0:
            raise UnreplayableError(f"more than {MOST_VALUES:,} values")

    def _refill(self, fresh: MutableMapping[Any, Any], items: MutableMapping[Any, Any]) -> Any:
        for key, item in list(items.items()):
            fresh[key] = self.of(item)
        return fresh
