"""Hooks that a script registered on parameters: parallel wrappers run them early, or never."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.autograd import graph

ON_TENSOR = "register_hook"
ON_TENSORS = "register_multi_grad_hook"
AFTER_ACCUMULATION = "register_post_accumulate_grad_hook"
_ON_NODE = "{} of its AccumulateGrad node"
AFTER_NODE = _ON_NODE.format(ON_TENSOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A hook, the name of its parameter, and what it was registered by."""

    parameter: str
    by: str
    function: Callable[..., Any]

    @property
    def is_on_node(self) -> bool:
        """Return whether it is on the node of autograd by which the parameter gets its gradient."""
        return self.by not in {ON_TENSOR, ON_TENSORS, AFTER_ACCUMULATION}

    @property
    def only_logs(self) -> bool:
        """Return whether it is one of `wandb.watch`, which looks at gradients and changes none."""
        return (getattr(self.function, "__module__", None) or "").partition(".")[0] == "wandb"


def registered(module: nn.Module) -> Iterator[Hook]:
    """Yield the hooks on a module's parameters, also on those that are frozen now: they may be trained later."""
    for name, parameter in module.named_parameters():
        on_tensor = {ON_TENSOR: parameter._backward_hooks, AFTER_ACCUMULATION: parameter._post_accumulate_grad_hooks}
        for by, hooks in {**on_tensor, **_on_node(parameter)}.items():
            for function in (hooks or {}).values():
                yield of(name, by, function)


def of(parameter: str, by: str, function: Callable[..., Any]) -> Hook:
    """Return a hook as the script registered it: one of several tensors is called by functions of torch's."""
    code = getattr(function, "__code__", None)
    if code is not None and code.co_filename == graph.__file__ and "fn" in code.co_freevars:
        by, function = ON_TENSORS, inspect.getclosurevars(function).nonlocals["fn"]
    return Hook(parameter=parameter, by=by, function=function)


def _on_node(parameter: nn.Parameter) -> dict[str, Mapping[int, Callable[..., Any]]]:
    if not (parameter.is_floating_point() or parameter.is_complex()):
        return {}
    is_trained = parameter.requires_grad
    node = graph.get_gradient_edge(parameter.requires_grad_()).node
    parameter.requires_grad_(is_trained)
    found = {}
    for register in (node.register_hook, node.register_prehook):
        handle = register(_nothing)  # torch shows the others in no other way
        handle.remove()
        found[_ON_NODE.format(register.__name__)] = handle.hooks_dict_ref() or {}
    return found


def _nothing(*_: Any) -> None:
    """Leave gradients as they are."""


def named(hook: Callable[..., Any]) -> str:
    """Return the name of a function, or of a callable's class, and its line, where it is one of Python's."""
    hook = inspect.unwrap(hook)
    while isinstance(hook, functools.partial):
        hook = hook.func
    code = getattr(hook, "__code__", None) or getattr(type(hook).__call__, "__code__", None)
    name = getattr(hook, "__qualname__", type(hook).__name__)
    return name if code is None else f"{name} at {code.co_filename}:{code.co_firstlineno}"
