"""Sees the backward passes that parallel wrappers do not see, or cannot follow, and keeps their lines."""

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


def watch(patches: Patches, passes: Passes) -> None:
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
