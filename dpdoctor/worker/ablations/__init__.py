"""One file per ablation; the file's name is what `--ablations` takes. Importing an ablation does not import torch."""

from __future__ import annotations

from importlib import import_module

from dpdoctor.worker.ablations._base import Ablation


def load(name: str) -> Ablation:
    """Return the ablation of a name in the catalogue."""
    ablation: Ablation = import_module(f"{__name__}.{name}").ABLATION
    return ablation
