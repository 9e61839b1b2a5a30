"""Is the loss a sum over the batch? Averaging gradients over ranks then changes the mathematics."""

from __future__ import annotations

from typing import Any

# Values of `_saved_reduction`: torch's ATen/core/Reduction.h.
_SUM = 2
# Nodes that pass a loss on unchanged in kind; anything else (a division, a mean) ends the search.
_THROUGH = ("AddBackward", "ViewBackward", "SqueezeBackward", "ToCopyBackward", "CloneBackward", "ReshapeAliasBackward")
_MOST_NODES = 64


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
        if name.startswith("SumBackward") or getattr(node, "_saved_reduction", None) == _SUM:
            return True
        if name.startswith(_THROUGH):
            todo.extend(parent for parent, _ in node.next_functions)
    return False
