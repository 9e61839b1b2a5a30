"""Where a dataset keeps its chains of transforms: lists and tuples of callables, as torchvision's Compose has one.

Found are attributes of the dataset, of datasets inside it (Subset, ConcatDataset) and of what these hold. Not found are
chains in closures, in nn.Sequential, in `__slots__`, and transforms that are attributes one by one.
"""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np
import torch

# A dataset may hold anything; the chains lie near it.
MOST_OBJECTS = 256
MOST_ELEMENTS = 64
_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType)
_NOT_HOLDERS = (type, ModuleType, *_FUNCTIONS, torch.Tensor, np.ndarray)


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """The list or tuple of callables that is `attributes[name]` of some object, and its entries when it was found."""

    attributes: dict[str, Any]
    name: str
    entries: tuple[Any, ...]

    def held(self) -> Any:
        """Return the list or tuple if it has the same entries still, else None."""
        found: Any = self.attributes.get(self.name)
        if type(found) not in (list, tuple) or len(found) != len(self.entries):
            return None
        return found if all(map(_is, found, self.entries)) else None

    def names(self) -> list[str]:
        """Return what to call each entry: its class, or the function that it is."""
        return [_name(entry) for entry in self.entries]


def find(dataset: Any) -> list[Chain]:
    """Return the chains of a dataset, the nearest first. No code of the script's runs while they are looked for."""
    chains: list[Chain] = []
    seen = {id(dataset)}
    objects = deque([dataset])
    while objects and len(seen) <= MOST_OBJECTS:
        attributes = _attributes(objects.popleft())
        for name, value in list(attributes.items()):
            if _is_chain(value):
                chains.append(Chain(attributes, name, tuple(value)))
            for inner in _inside(value):
                if id(inner) not in seen:
                    seen.add(id(inner))
                    objects.append(inner)
    return chains


def _attributes(holder: Any) -> dict[str, Any]:
    if issubclass(type(holder), _NOT_HOLDERS) or not type(holder).__dictoffset__:
        return {}
    return cast("dict[str, Any]", object.__getattribute__(holder, "__dict__"))


def _is_chain(value: Any) -> bool:
    if type(value) not in (list, tuple) or not 0 < len(value) <= MOST_ELEMENTS:
        return False
    return all(callable(entry) and not issubclass(type(entry), type) for entry in value)


def _inside(value: Any) -> list[Any]:
    """Return what of a value may hold chains: itself, or the elements of a list, tuple or dict."""
    if type(value) in (list, tuple):
        return list(value[:MOST_ELEMENTS])
    if type(value) is dict:
        return list(value.values())[:MOST_ELEMENTS]
    return [value] if type(value).__dictoffset__ else []


def _is(found: Any, entry: Any) -> bool:
    return found is entry


def _name(entry: Any) -> str:
    if type(entry) is functools.partial:
        return _name(entry.func)
    return str(entry.__name__ if type(entry) in _FUNCTIONS else type(entry).__name__)
