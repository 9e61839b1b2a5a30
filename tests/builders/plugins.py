"""What a folder of plug-ins holds: its files, and what each of them offers."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any


def names(package: ModuleType) -> list[str]:
    """Return the sorted names of the package's public modules, without importing them."""
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))


def collect(package: ModuleType, attribute: str) -> dict[str, Any]:
    """Import every public module of `package` and return `{module name: module.attribute}`, by name.

    Raises:
        AttributeError: a module offers no `attribute`; a file in a plug-in folder must.
    """
    found: dict[str, Any] = {}
    for name in names(package):
        module = importlib.import_module(f"{package.__name__}.{name}")
        if not hasattr(module, attribute):
            raise AttributeError(f"{module.__file__} is a plug-in of {package.__name__} but offers no {attribute}")
        found[name] = getattr(module, attribute)
    return found
