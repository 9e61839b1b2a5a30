"""Checkpoints of sharded parameters: what saves them, past torch.save, finds this rank's part.

torch.save knows sharded tensors. Other libraries ask a tensor for its memory, of which the whole one has none.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from dpdoctor.worker.base.patches import Patches


def save_parts(patches: Patches) -> None:
    """Have a sharded tensor name the memory of its part, and safetensors write that part.

    Nothing is gathered: a script that saves where its loss is lowest does so on one rank and not on another.
    """
    patches.replace(DTensor, "untyped_storage", lambda tensor: tensor._local_tensor.untyped_storage())
    if importlib.util.find_spec("safetensors"):
        safetensors = importlib.import_module("safetensors.torch")
        # What looks for tied tensors is the only way into save_model.
        for name in ("save", "save_file", "_remove_duplicate_names"):
            patches.replace(safetensors, name, _of_parts(getattr(safetensors, name)))


def _of_parts(save: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of safetensors that takes sharded tensors in its first argument, the dict."""

    @functools.wraps(save)
    def save_part(*args: Any, **options: Any) -> Any:
        if args:
            return save(_parts(args[0]), *args[1:], **options)
        return save(**{**options, "tensors": _parts(options["tensors"])})

    return save_part


def _parts(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies of the parts, alone in their memory: shards are padded. Tied tensors share one."""
    copies: dict[tuple[int, torch.Size], torch.Tensor] = {}

    def part(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, DTensor):
            return tensor
        local = tensor._local_tensor
        return copies.setdefault((local.untyped_storage().data_ptr(), local.shape), local.detach().clone())

    return {name: part(tensor) for name, tensor in tensors.items()}
