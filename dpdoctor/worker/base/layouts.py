"""Tensors in containers; and those that are not laid out densely: sparse ones, and nested ones of rows of their own."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch


def tensors(value: Any, most: int = sys.maxsize) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested containers, the nearest first, among no more than `most` values."""
    return (found for found in nested(value, most) if isinstance(found, torch.Tensor))


def nested(value: Any, most: int = sys.maxsize) -> Iterator[Any]:
    """Yield a value and what it holds in nested containers, the nearest first; no more than `most` of them.

    A container that leads back to itself is looked into once.
    """
    found, looked_into = [value], set()
    for nearest in found:  # it grows meanwhile
        yield nearest
        if isinstance(nearest, torch.Tensor) or len(found) == most or id(nearest) in looked_into:
            continue
        held = nearest if isinstance(nearest, (list, tuple)) else named(nearest)
        if held is not None:
            looked_into.add(id(nearest))
            found += islice(held, most - len(found))


def named(value: Any) -> Sequence[Any] | None:
    """Return what a mapping or a dataclass holds by names; None: it is neither."""
    if isinstance(value, Mapping):
        return tuple(value.values())
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, torch.nn.Module)):
        return tuple(getattr(value, field.name, None) for field in dataclasses.fields(value))
    return None


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is neither sparse nor nested, nor laid out in another way of its own."""
    return tensor.layout == torch.strided and not tensor.is_nested


def is_mapped(tensor: torch.Tensor) -> bool:
    """Return whether a transform of torch.func runs, such as vmap, and the tensor stands for many."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return a tensor's shape; of a nested one, which has none, how many rows it holds."""
    return (tensor.size(0),) if tensor.is_nested else tuple(tensor.shape)


def parts(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return dense tensors that hold all that a tensor holds."""
    if tensor.is_nested:
        return tensor.unbind()
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in {torch.sparse_csc, torch.sparse_bsc}:
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,) if is_dense(tensor) else (tensor.to_dense(),)


def sharded_elements(parts: Iterable[torch.nn.Module]) -> dict[int, int]:
    """Return by its id how many elements each parameter has on all ranks together that FSDP1 shards.

    Of these parts: its flat parameters, and the script's own where they stay (use_orig_params). All others are whole
    or, as a DTensor, tell the whole themselves.
    """
    found: dict[int, int] = {}
    for part in parts:
        flat = getattr(getattr(part, "_handle", None), "flat_param", None)
        numels = getattr(flat, "_numels", None)
        if flat is not None and numels is not None:
            found[id(flat)] = sum(numels)
            found |= zip(map(id, flat._params or ()), numels, strict=False)
    return found
