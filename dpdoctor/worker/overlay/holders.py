"""Which modules hold Python's file functions: those that are there when this is imported are looked through once.

A server imports it before it forks. To look at every object of torch takes a new process a few hundredths of a second;
a forked one would, by counting references, copy most of the memory that it shares.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, ModuleType
from typing import Any

from dpdoctor.worker.overlay.disk import posix

_Found = list[tuple[str, Any]]
# Compared by identity: values of modules may not be hashable, or warn when they are looked at.
_FUNCTIONS = {id(value): value for value in (io.open, *vars(posix).values()) if type(value) is BuiltinFunctionType}


def file_functions(owner: Any) -> _Found:
    """Return what a module or class holds of `posix` and of `open`, and under which names."""
    values = ((name, value.__func__ if type(value) is staticmethod else value) for name, value in vars(owner).items())
    return [(name, value) for name, value in values if id(value) in _FUNCTIONS]


def modules() -> Iterator[tuple[ModuleType, _Found]]:
    """Yield every imported module with what it holds."""
    for name, module in _imported():
        known, found = _LOOKED_THROUGH.get(name, (None, []))
        if known is module:
            yield module, [(held, function) for held, function in found if vars(module).get(held) is function]
        else:
            yield module, file_functions(module)


def _imported() -> list[tuple[str, ModuleType]]:
    return [(name, module) for name, module in list(sys.modules.items()) if isinstance(module, ModuleType)]


def _is_complete(name: str, module: ModuleType) -> bool:
    return name != "__main__" and not getattr(getattr(module, "__spec__", None), "_initializing", False)


_LOOKED_THROUGH = {name: (module, file_functions(module)) for name, module in _imported() if _is_complete(name, module)}
