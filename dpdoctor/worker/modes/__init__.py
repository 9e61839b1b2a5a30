"""One file per mode; the file's name is the value of `--modes`. Importing a mode does not import torch."""

from __future__ import annotations

from importlib import import_module

from dpdoctor.worker.base.mode import Mode


def load(name: str) -> Mode:
    """Return the mode of a name in the catalogue."""
    mode: Mode = import_module(f"{__name__}.{name}").MODE
    return mode
