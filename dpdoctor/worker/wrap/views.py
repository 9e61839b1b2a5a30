"""Tells whether rows that enter a model resemble others in their place, as views of the same samples do.

Where nobody knows what rows were made of, their values tell: of all others, those of the same sample are the nearest.
"""

from __future__ import annotations

import torch

from dpdoctor.worker.base import layouts

# So many rows are compared, and so many elements of each, evenly spread.
MOST_ROWS, MOST_ELEMENTS = 64, 512
# Of fewer rows it may be chance. Of others a share must resemble those in their place; by chance it is one of them all.
LEAST_ROWS, LEAST_ALIKE, LEAST_SHARE = 6, 8, 1 / 3
MOST_VIEWS = 8


def are_comparable(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has rows of values."""
    is_plain = type(tensor) is torch.Tensor and layouts.is_dense(tensor) and not layouts.is_mapped(tensor)
    return is_plain and tensor.dim() > 1 and tensor.numel() > 0 and not (tensor.is_complex() or tensor.is_meta)


def some_rows(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return values of some rows as a matrix; None: there are too few, or they cannot be compared."""
    if not are_comparable(tensor) or len(tensor) < LEAST_ROWS:
        return None
    rows = tensor.detach()[:: max(1, len(tensor) // MOST_ROWS)].flatten(1)
    return rows[:, :: max(1, rows.shape[1] // MOST_ELEMENTS)].float()


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
    numbers = range(2, MOST_VIEWS + 1) if are_comparable(tensor) else ()
    for number in numbers:
        blocks = tensor.detach().chunk(number) if len(tensor) % number == 0 else ()
        some, others = map(some_rows, blocks[:2]) if blocks else (None, None)
        if some is not None and others is not None and are_alike(some, others):
            return number if all(torch.equal(blocks[0], block) for block in blocks) else 0
    return 1
