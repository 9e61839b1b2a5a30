"""Attributes of torch that are replaced while a script runs, and put back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import nn

from dpdoctor.worker import sequences

_INHERITED = object()


class Patches:
    """Replaces attributes and remembers the originals and the hooks that were added beside them.

    DataLoader workers are forked with every patch in place: they get the originals back at birth, unless the patches
    are meant `for_children` too.
    """

    def __init__(self, *, for_children: bool = False) -> None:
        self._originals: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._names: list[str] = []
        self._removals: list[Callable[[], None]] = []
        if not for_children:
            os.register_at_fork(after_in_child=self.undo)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name` to `value`."""
        original = vars(owner).get(name, _INHERITED)
        self._originals.setdefault((id(owner), name), (owner, original))
        self._names.append(f"{_label(owner)}.{name}")
        _assign(owner, name, value)

    def add(self, name: str, remove: Callable[[], None]) -> None:
        """Take note of a hook that is in place already and that `remove` takes away again."""
        self._names.append(name)
        self._removals.append(remove)

    def restore(self, owner: Any, name: str) -> None:
        """Put one original back; nothing happens when it is already back."""
        saved = self._originals.pop((id(owner), name), None)
        if saved is None:
            return
        _assign(owner, name, saved[1])

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
    with sequences.as_they_were(owner) if is_subscript else contextlib.nullcontext():
        if value is _INHERITED:
            object.__delattr__(owner, name) if is_module else delattr(owner, name)
        else:
            object.__setattr__(owner, name, value) if is_module else setattr(owner, name, value)


def _label(owner: Any) -> str:
    if isinstance(owner, ModuleType):
        return owner.__name__
    kind = owner if isinstance(owner, type) else type(owner)
    return f"{kind.__module__}.{kind.__qualname__}"
