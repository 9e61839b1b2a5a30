"""Tells whether rows that enter a model resemble others in their place, as views of the same samples do.

Where nobody knows what rows were made of, their values tell: of all others, those of the same sample are the nearest.
"""

from __future__ import annotations

import math

import torch

from dpdoctor.worker.base import structure

# So many rows are compared, and so many elements of each, evenly spread.
MOST_ROWS, MOST_ELEMENTS = 64, 512
# Of fewer rows it may be chance. Of others a share must resemble those in their place; by chance it is one of them all.
LEAST_ROWS, LEAST_ALIKE, LEAST_SHARE = 6, 8, 1 / 3
MOST_VIEWS, MOST_AXES = 8, 8


def are_comparable(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has rows of values."""
    is_plain = type(tensor) is torch.Tensor and structure.is_dense(tensor) and not structure.is_mapped(tensor)
    return is_plain and tensor.dim() > 1 and tensor.numel() > 0 and not (tensor.is_complex() or tensor.is_meta)


def some_rows(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a copy of some rows as a matrix; None: there are too few, or they cannot be compared."""
    if not are_comparable(tensor) or len(tensor) < LEAST_ROWS:
        return None
    rows = tensor.detach()[:: max(1, len(tensor) // MOST_ROWS)].flatten(1)
    return rows[:, :: max(1, rows.shape[1] // MOST_ELEMENTS)].to(torch.float32, copy=True)


def are_alike(some: torch.Tensor, others: torch.Tensor) -> bool:
    """Return whether rows resemble others in their place: as they are, or in the values that they hold.

    The latter do, where an image was turned, or moved.
    """
    if some.shape != others.shape:
        return False
    return _resemble(some, others) or _resemble(some.sort().values, others.sort().values)


def _resemble(some: torch.Tensor, others: torch.Tensor) -> bool:
    distances = torch.cdist(some, others, p=1)
    own = distances.diagonal().clone()
    distances.fill_diagonal_(torch.inf)
    num_alike = int((own < distances.min(1).values).sum())
    return num_alike >= max(min(LEAST_ALIKE, len(some)), LEAST_SHARE * len(some))


def times(tensor: torch.Tensor) -> int:
    """Return how often a tensor holds each row, one block of them after the other; 0: blocks that are only alike."""
    if not are_comparable(tensor):
        return 1
    rows = tensor.detach()
    once = _once(rows)
    numbers = [number for number in range(2, MOST_VIEWS + 1) if len(once) % number == 0]
    has_views = any(_is_alike_next(once, len(once) // number) for number in numbers)
    return 0 if has_views and not _is_grid(once) else len(rows) // len(once)


def _once(rows: torch.Tensor) -> torch.Tensor:
    """Return the rows before they begin anew; all where they never do, or where many of one block are alike."""
    num_rows = len(rows)
    for length in range(LEAST_ROWS, num_rows // 2 + 1):
        is_block = num_rows % length == 0 and torch.equal(rows[0], rows[length])
        if is_block and torch.equal(rows[length:], rows[:-length]):
            return rows[:length] if _is_alike_next(rows, length) else rows
    return rows


def _is_alike_next(rows: torch.Tensor, length: int) -> bool:
    """Return whether the first rows, so many, and the next ones resemble each other."""
    some, others = some_rows(rows[:length]), some_rows(rows[length : 2 * length])
    return some is not None and others is not None and are_alike(some, others)


def _is_grid(rows: torch.Tensor) -> bool:
    """Return whether rows are all points of a grid, of which those along one axis lie next to each other."""
    columns = rows.flatten(1)
    if columns.shape[1] > MOST_AXES:
        return False
    sizes = [len(column.unique()) for column in columns.T]
    return max(sizes) < len(rows) == math.prod(sizes)
