"""Tensors that are not laid out densely: sparse ones, and nested ones, whose rows are tensors of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is neither sparse nor nested, nor laid out in another way of its own."""
    return tensor.layout == torch.strided and not tensor.is_nested


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
