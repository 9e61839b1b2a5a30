"""What a loss keeps of how it was made.

Is it a sum over the batch? Averaging gradients over ranks then changes the mathematics. What is it held to? And does it
take the batch apart, as into views of the same samples, or hold its rows against each other?
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

# Values of `_saved_reduction`: torch's ATen/core/Reduction.h.
_MEAN, _SUM = 1, 2
# Nodes that pass a loss on unchanged in kind; anything else (a division, a mean) ends the search.
_THROUGH = (
    "AddBackward",
    "SubBackward",
    "NegBackward",
    "ViewBackward",
    "SqueezeBackward",
    "ToCopyBackward",
    "CloneBackward",
    "ReshapeAliasBackward",
)
# Nodes that make one tensor of several losses, or that a loss may pass before it is added up with others.
_GATHER = (*_THROUGH, "StackBackward", "CatBackward", "UnsqueezeBackward")
_MOST_NODES = 64
# Nodes of tensors that are taken apart along a dimension.
_APART = ("SplitBackward", "SplitWithSizesBackward", "SliceBackward")
# What losses keep of classes, and of sequences of them.
_TARGETS = ("_raw_saved_target", "_raw_saved_targets")


def is_summed(loss: Any) -> bool:
    """Return whether a loss tensor, or a term added into it, is a sum over samples that nothing divides after."""
    todo = [getattr(loss, "grad_fn", None)]
    for _ in range(_MOST_NODES):
        if not todo:
            return False
        node = todo.pop()
        if node is None:
            continue
        name = type(node).__name__
        if getattr(node, "_saved_reduction", None) == _SUM:
            return True
        if name.startswith("SumBackward") and not _adds_one_number(node):
            if not _adds_means(node):
                return True
        elif name.startswith((*_THROUGH, "SumBackward")) or _enlarges(node):
            todo.extend(parent for parent, _ in node.next_functions)
    return False


def targets(losses: Any) -> Iterator[torch.Tensor]:
    """Yield what the losses nearest to where a backward pass begins are held to, where torch's own loss keeps it.

    What the script's hooks keep in its place is left alone: to unpack it may be the forward pass once more.
    """
    nodes = _first_nodes(losses)
    for node in nodes:  # it grows meanwhile
        for name in _TARGETS:
            saved = getattr(node, name, None)
            if saved is not None and saved.unpack_hook is None and saved.data is not None:  # it is freed after a pass
                yield saved.data
        if node is not None and len(nodes) < _MOST_NODES:
            nodes += [parent for parent, _ in node.next_functions if parent not in nodes]


def taken_apart(losses: Any) -> Iterator[int]:
    """Yield the length of what losses take apart along dimension 0, or multiply by itself, after all parameters."""
    nodes = _first_nodes(losses)
    for node in nodes:  # it grows meanwhile
        is_apart = type(node).__name__.startswith(_APART) and getattr(node, "_saved_dim", None) == 0
        if is_apart or _is_against_itself(node):
            yield int(getattr(node, "_saved_self_sym_sizes", (0,))[0])
        parents = [parent for parent, _ in getattr(node, "next_functions", ()) if parent is not None]
        if not any(map(_is_of_parameter, parents)) and len(nodes) < _MOST_NODES:
            nodes += [parent for parent in parents if parent not in nodes]


def _first_nodes(losses: Any) -> list[Any]:
    """Return where a backward pass from one loss, or from several, begins; None for those without a graph."""
    return [getattr(loss, "grad_fn", None) for loss in (losses if isinstance(losses, (list, tuple)) else [losses])]


def _is_of_parameter(node: Any) -> bool:
    """Return whether a node is that of a leaf, or of one that is transposed, as Linear does."""
    nodes = (node, *(parent for parent, _ in node.next_functions)) if _is_transposed(node) else (node,)
    return any(hasattr(node, "variable") for node in nodes)


def _is_against_itself(node: Any) -> bool:
    """Return whether a matrix is multiplied by itself, transposed: each row by each, as similarities are made."""
    if not type(node).__name__.startswith("MmBackward"):
        return False
    (rows, _), (columns, _) = node.next_functions
    return rows is not None and _is_transposed(columns) and columns.next_functions[0][0] is rows


def _is_transposed(node: Any) -> bool:
    return type(node).__name__.startswith(("TBackward", "TransposeBackward", "PermuteBackward"))


def _adds_one_number(node: Any) -> bool:
    """Return whether a sum is over a single number: `loss.sum()` of a loss that is one already; a nested one is not."""
    return all(size == 1 for size in getattr(node, "_saved_self_sym_sizes", (0,)))


def _adds_means(node: Any) -> bool:
    """Return whether what is summed was averaged over the batch before: over dimension 0, or wholly."""
    todo = [parent for parent, _ in node.next_functions]
    for _ in range(_MOST_NODES):
        if not todo:
            return False
        node = todo.pop()
        name = type(node).__name__
        if getattr(node, "_saved_reduction", None) == _MEAN or name.startswith("MeanBackward0"):
            return True
        if name.startswith("MeanBackward") and _is_over_the_batch(node):
            return True
        if name.startswith(_GATHER):
            todo.extend(parent for parent, _ in node.next_functions)
    return False


def _is_over_the_batch(mean: Any) -> bool:
    """Return whether a mean over dimensions is over the first one: no dimensions are all."""
    dims = getattr(mean, "_saved_dim", None)
    return not dims or 0 in dims


def _enlarges(node: Any) -> bool:
    """Return whether a loss is multiplied by a constant of at least 1, as a GradScaler does: no mean is made so."""
    if not type(node).__name__.startswith("MulBackward") or all(parent for parent, _ in node.next_functions):
        return False
    factor = next((value for value in (_factor(node, "other"), _factor(node, "self")) if value is not None), None)
    return factor is not None and factor >= 1


def _factor(node: Any, side: str) -> float | None:
    """Return the number that a multiplication saved of one side; None for what is no single number."""
    value = getattr(node, f"_saved_{side}", None)
    if isinstance(value, torch.Tensor):
        return None if value.ndim or value.is_complex() else float(value)
    return float(value) if isinstance(value, (int, float)) else None
