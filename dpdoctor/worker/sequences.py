"""Classes that Python would take for sequences once their `__getitem__` is replaced.

CPython gives a class whose `__getitem__` is written in Python, and all of its subclasses, what makes sequences of them,
and never takes it back. `torch.tensor([loss])` asks a tensor of dimension 0 for its length then, which it refuses.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

# Where CPython keeps `tp_as_sequence` in a class, after the head of an object of variable size and ten more fields, and
# `sq_item` in that, after three.
_WORD = ctypes.sizeof(ctypes.c_void_p)
_AS_SEQUENCE = object.__basicsize__ + _WORD + 10 * _WORD
_ITEM = 3 * _WORD


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
