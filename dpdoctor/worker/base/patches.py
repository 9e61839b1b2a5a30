"""Attributes of torch that are replaced while a script runs, and put back.

CPython gives a class whose `__getitem__` is written in Python, and all of its subclasses, what makes sequences of
them, and never takes it back. `torch.tensor([loss])` asks a tensor of dimension 0 for its length then, which it
refuses: that is put right, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from torch import nn

# Where CPython keeps `tp_as_sequence` in a class, after the head of an object of variable size and ten more fields, and
# `sq_item` in that, after three.
_WORD = ctypes.sizeof(ctypes.c_void_p)
_AS_SEQUENCE = object.__basicsize__ + _WORD + 10 * _WORD
_ITEM = 3 * _WORD


def around_compiled(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that stands around a compiled one, marked as torch marks its own wrappers.

    Of these it asks for what is inside: the script may compile it once more.
    """
    vars(call)["_torchdynamo_wrapper_id"] = id(call)
    return call


@contextlib.contextmanager
def as_they_were(owner: type) -> Iterator[None]:
    """Have `owner` and its subclasses be sequences after what is done inside only where they were before."""
    none_before = [each for each in _with_subclasses(owner) if not _item(each).value]
    try:
        yield
    finally:
        for each in none_before:
            _item(each).value = None


def _item(owner: type) -> ctypes.c_void_p:
    """Return the field itself: setting its value sets the class's."""
    address = ctypes.c_void_p.from_address(id(owner) + _AS_SEQUENCE).value
    return ctypes.c_void_p.from_address(address + _ITEM) if address else ctypes.c_void_p()


def _with_subclasses(owner: type) -> list[type]:
    children: list[type] = type.__subclasses__(owner)
    return [owner, *(each for child in children for each in _with_subclasses(child))]


_INHERITED = object()


class Patches:
    """Replaces attributes and remembers the originals and the hooks that were added beside them.

    DataLoader workers are forked with every patch in place: they get the originals back at birth, unless the patches
    are meant `for_children` too. What somebody else has put in place of ours, or around it, stays.
    """

    def __init__(self, *, for_children: bool = False) -> None:
        self._originals: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._ours: dict[tuple[int, str], Any] = {}
        self._names: list[str] = []
        self._removals: list[Callable[[], None]] = []
        if not for_children:
            os.register_at_fork(after_in_child=self.undo)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name` to `value`."""
        original = vars(owner).get(name, _INHERITED)
        self._originals.setdefault((id(owner), name), (owner, original))
        self._ours[id(owner), name] = value
        self._names.append(f"{_label(owner)}.{name}")
        _assign(owner, name, value)

    def add(self, name: str, remove: Callable[[], None]) -> None:
        """Take note of a hook that is in place already and that `remove` takes away again."""
        self._names.append(name)
        self._removals.append(remove)

    def restore(self, owner: Any, name: str) -> bool:
        """Put one original back; return whether ours was in its place."""
        saved = self._originals.pop((id(owner), name), None)
        if saved is None or vars(owner).get(name, _INHERITED) is not self._ours.pop((id(owner), name)):
            return False
        _assign(owner, name, saved[1])
        return True

    def undo(self) -> None:
        """Put every original back and take every hook away."""
        while self._removals:
            self._removals.pop()()
        for owner, name in [(owner, name) for (_, name), (owner, _) in self._originals.items()]:
            self.restore(owner, name)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the qualified names of everything that was ever replaced or added, in order."""
        return tuple(self._names)


def _assign(owner: Any, name: str, value: Any) -> None:
    """Set an attribute on this very object, or delete it where `value` is _INHERITED.

    A wrapper of modules may pass on what is set, to the module inside.
    """
    is_module = isinstance(owner, nn.Module)
    is_subscript = name == "__getitem__" and isinstance(owner, type)
    with as_they_were(owner) if is_subscript else contextlib.nullcontext():
        if value is _INHERITED:
            object.__delattr__(owner, name) if is_module else delattr(owner, name)
        else:
            object.__setattr__(owner, name, value) if is_module else setattr(owner, name, value)


def _label(owner: Any) -> str:
    if isinstance(owner, ModuleType):
        return owner.__name__
    kind = owner if isinstance(owner, type) else type(owner)
    return f"{kind.__module__}.{kind.__qualname__}"
