"""Attributes of torch that are replaced while a script runs, and put back."""

from __future__ import annotations

import os
from typing import Any

_INHERITED = object()


class Patches:
    """Replaces attributes and remembers the originals.

    DataLoader workers are forked with every patch in place: they get the originals back at birth.
    """

    def __init__(self) -> None:
        self._originals: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._names: list[str] = []
        os.register_at_fork(after_in_child=self.undo)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name` to `value`."""
        original = vars(owner).get(name, _INHERITED)
        self._originals[(id(owner), name)] = (owner, original)
        label = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
        self._names.append(f"{label}.{name}")
        setattr(owner, name, value)

    def restore(self, owner: Any, name: str) -> None:
        """Put one original back; nothing happens when it is already back."""
        saved = self._originals.pop((id(owner), name), None)
        if saved is None:
            return
        if saved[1] is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, saved[1])

    def undo(self) -> None:
        """Put every original back."""
        for owner, name in [(owner, name) for (_, name), (owner, _) in self._originals.items()]:
            self.restore(owner, name)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the qualified names of everything that was ever replaced, in order."""
        return tuple(self._names)
