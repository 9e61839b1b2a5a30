"""What autograd shows where a backward pass begins: whether parallel wrappers see it, and how its loss was made.

Passes that parallel wrappers do not see, or cannot follow, are kept with their lines. Is the loss a sum over the batch?
Averaging gradients over ranks then changes the mathematics. What is it held to? And does it take the batch apart, as
into views of the same samples, or hold its rows against each other?
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from dpdoctor.worker.base import lines
from dpdoctor.worker.base.mode import Passes
from dpdoctor.worker.base.patches import Patches

# A graph is looked through until a trained parameter is found: so many of its nodes, and so many graphs.
MOST_NODES = 20_000
MOST_LOOKS = 20
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
# CopySlices writes one into its place, as `losses[0] = ...` does.
_GATHER = (*_THROUGH, "StackBackward", "CatBackward", "UnsqueezeBackward", "CopySlices")
_MOST_OF_LOSS = 64  # nodes
# Nodes of tensors that are taken apart along a dimension.
_APART = ("SplitBackward", "SplitWithSizesBackward", "SliceBackward")
# What losses keep of classes, and of sequences of them.
_TARGETS = ("_raw_saved_target", "_raw_saved_targets")


def watch_passes(patches: Patches, passes: Passes) -> None:
    """See torch.autograd.grad and torch.func.functional_call from now on."""
    grad, functional_call = torch.autograd.grad, torch.func.functional_call

    @functools.wraps(grad)
    def noting_grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = tuple(inputs) if isinstance(inputs, Iterator) else inputs
        if kwargs.get("create_graph") or args[2:3] == (True,):
            note_graph(passes)
        if not passes.by_grad and any(isinstance(tensor, nn.Parameter) for tensor in _listed(inputs)):
            passes.by_grad = lines.caller()
        return grad(outputs, inputs, *args, **kwargs)

    @functools.wraps(functional_call)
    def noting_call(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            passes.functional = passes.functional or lines.caller()
        return functional_call(*args, **kwargs)

    patches.replace(torch.autograd, "grad", noting_grad)
    patches.replace(torch.func, "functional_call", noting_call)


def note_graph(passes: Passes) -> None:
    """A backward pass that is to have a graph of its own begins: keep the line of the first."""
    passes.with_graph = passes.with_graph or lines.caller()


class Repeats:
    """Finds the first backward pass through a forward that another one went through before, or that nobody saw."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._looks = 0
        self._has_kept = False

    def before_backward(
        self,
        tensors: Any,
        parameters: Callable[[], Iterable[nn.Parameter]],
        *,
        after_forward: bool,
        keeps_graph: bool,
    ) -> None:
        """A backward pass begins; `after_forward`: a training forward has come since the last one.

        `parameters` gives those of the wrapped modules. Only where an earlier pass kept its graph can this one repeat
        it.
        """
        has_kept, self._has_kept = self._has_kept, self._has_kept or keeps_graph
        noted = self._passes
        if after_forward or noted.repeated or noted.past or self._looks == MOST_LOOKS:
            return
        self._looks += 1
        if not _leads_to(_listed(tensors), {id(parameter) for parameter in parameters()}):
            return
        if has_kept:
            noted.repeated = lines.caller()
        else:
            noted.past = lines.caller()

    def step_ended(self, uncalled: Sequence[str]) -> bool:
        """A step ended, and `uncalled` methods, which stand for a model's call, were not called in it.

        Return whether that tells for the first time by which of them a backward pass went past.
        """
        if not (uncalled and self._passes.past) or self._passes.past_method:
            return False
        self._passes.past_method = uncalled[0]
        return True


def _listed(value: Any) -> Sequence[Any]:
    """Return tensors, or those of a dict, as a sequence; an iterator stays whole for whom it is meant: none here."""
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, Mapping):
        value = value.values()
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, Iterator) else ()


def _leads_to(tensors: Iterable[Any], parameters: set[int]) -> bool:
    """Return whether a backward pass from these tensors would give one of the parameters a gradient."""
    todo: list[Any] = [getattr(tensor, "grad_fn", None) for tensor in tensors]
    seen: set[Any] = set()
    while todo and len(seen) < MOST_NODES:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if id(getattr(node, "variable", None)) in parameters:
            return True
        todo.extend(parent for parent, _ in node.next_functions)
    return False


def is_summed(loss: Any) -> bool:
    """Return whether a loss tensor, or a term added into it, is a sum over samples that nothing divides after."""
    todo = [getattr(loss, "grad_fn", None)]
    for _ in range(_MOST_OF_LOSS):
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


def loss_targets(losses: Any) -> Iterator[torch.Tensor]:
    """Yield what the losses nearest to where a backward pass begins are held to, where torch's own loss keeps it.

    What the script's hooks keep in its place is left alone: to unpack it may be the forward pass once more.
    """
    nodes = _first_nodes(losses)
    for node in nodes:  # it grows meanwhile
        for name in _TARGETS:
            saved = getattr(node, name, None)
            if saved is not None and saved.unpack_hook is None and saved.data is not None:  # it is freed after a pass
                yield saved.data
        if node is not None and len(nodes) < _MOST_OF_LOSS:
            nodes += [parent for parent, _ in node.next_functions if parent not in nodes]


def taken_apart(losses: Any) -> Iterator[int]:
    """Yield the length of what losses take apart along dimension 0, or multiply by itself, after all parameters."""
    nodes = _first_nodes(losses)
    for node in nodes:  # it grows meanwhile
        is_apart = type(node).__name__.startswith(_APART) and getattr(node, "_saved_dim", None) == 0
        if is_apart or _is_against_itself(node):
            yield int(getattr(node, "_saved_self_sym_sizes", (0,))[0])
        parents = [parent for parent, _ in getattr(node, "next_functions", ()) if parent is not None]
        if not any(map(_is_of_parameter, parents)) and len(nodes) < _MOST_OF_LOSS:
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
    for _ in range(_MOST_OF_LOSS):
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
