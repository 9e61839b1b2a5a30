"""Modules that the script compiled: wrapped first and compiled after, as their author would.

The order matters: DistributedDataParallel around a compiled module reduces its gradients later than a compiled
DistributedDataParallel does, and would measure another program.

A compiled function that calls a model is traced with it as one graph, past every wrapper of the model. It runs as
Python, and the model is compiled in its place.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dpdoctor.worker.base import lines
from dpdoctor.worker.base.patches import Patches


@dataclass(slots=True, kw_only=True)
class Function:
    """A function that the script compiled, where, and with which arguments.

    `calls_trained`: whether it calls a module that is trained; None: nobody has looked.
    """

    name: str
    line: str
    arguments: dict[str, Any]
    calls_trained: bool | None = None


class Compilations:
    """Remembers with which arguments the script compiled a module, by torch.compile(module) or module.compile().

    `began` is called whenever it compiles anything.

    Attributes:
        functions: what it compiled that is no module, in order.
    """

    def __init__(self, began: Callable[[], None]) -> None:
        self._began = began
        self._arguments: weakref.WeakKeyDictionary[nn.Module, dict[str, Any]] = weakref.WeakKeyDictionary()
        self.functions: list[Function] = []

    def watch(
        self,
        patches: Patches,
        unseen: Callable[[Callable[..., Any]], Callable[..., Any]],
        as_python: Callable[[Function, Callable[..., Any], Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        """See every compilation from now on; `unseen` makes a function run as if modules were not watched.

        `as_python` gets a function that was compiled, itself and compiled, and returns what the script calls.
        """
        compile_any, compile_in_place = torch.compile, nn.Module.compile

        @functools.wraps(compile_any)
        def compile_and_note(model: Any = None, **arguments: Any) -> Any:
            self._began()
            result = unseen(compile_any)(model, **arguments)
            if isinstance(result, nn.Module):
                self._arguments[result] = arguments
            elif _is_of_script(model):
                function = Function(name=model.__qualname__, line=lines.caller(), arguments=arguments)
                self.functions.append(function)
                result = as_python(function, model, result)
            return result

        @functools.wraps(compile_in_place)
        def compile_in_place_and_note(module: nn.Module, *positional: Any, **arguments: Any) -> None:
            self._began()
            unseen(compile_in_place)(module, *positional, **arguments)
            self._arguments[module] = arguments

        patches.replace(torch, "compile", compile_and_note)
        patches.replace(nn.Module, "compile", compile_in_place_and_note)

    def arguments(self, module: nn.Module) -> dict[str, Any] | None:
        """Return the arguments that `module` was compiled with; None when it was not."""
        try:
            return self._arguments.get(module)
        except TypeError:  # it cannot be hashed, nor compiled: torch would
            return None

    def inner(self, module: nn.Module) -> nn.Module:
        """Return the script's own module behind what torch.compile returned; `module` itself when it is that."""
        return getattr(module, "_orig_mod", module) if module in self._arguments else module


def _is_of_script(model: Any) -> bool:
    """Return whether what is compiled is a function: a module's own call is compiled in place of the module."""
    return inspect.isfunction(model) or (inspect.ismethod(model) and model.__name__ != "_call_impl")


def reached(python: Callable[..., Any], values: Sequence[Any]) -> Iterator[nn.Module]:
    """Yield the modules that a function may call: what it is given, what it is bound to, closes over, or names.

    Of other objects among these, the modules that they hold by an attribute.
    """
    inner = inspect.unwrap(getattr(python, "__func__", python))
    names, cells = inspect.getclosurevars(inner), [getattr(python, "__self__", None)]
    for value in (*values, *cells, *names.nonlocals.values(), *names.globals.values()):
        if isinstance(value, nn.Module):
            yield value
        else:
            held = getattr(value, "__dict__", {}).values() if not inspect.ismodule(value) else ()
            yield from (one for one in list(held) if isinstance(one, nn.Module))


def compiled_as(target: Callable[..., Any], arguments: dict[str, Any]) -> Callable[..., Any]:
    """Return a parallel mode's target, compiled with the script's arguments but `fullgraph`.

    torch traces no parallel wrapper as one graph: neither DistributedDataParallel's forward nor FSDP's hooks.
    """
    return torch.compile(target, **{**arguments, "fullgraph": False})
