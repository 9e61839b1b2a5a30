"""Modules that the script compiled: wrapped first and compiled after, as their author would.

The order matters: DistributedDataParallel around a compiled module reduces its gradients later than a compiled
DistributedDataParallel does, and would measure another program.

A compiled function that calls a model is traced with it as one graph, past every wrapper of the model. It runs as
Python, and the model is compiled in its place.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from dpdoctor.worker.base import lines, structure
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.wrap.methods import CALL

# A function may lead to all that a script has.
MOST_REACHED = 1024


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
    """Yield the modules that a function may call, the nearest first: those that it, or what it is given, leads to.

    A function leads to what it is bound to, closes over or names, and to the attributes that it names of modules and
    classes among these; containers and other objects lead to what they hold.
    """
    found = [python, *values]
    seen = set(map(id, found))
    for nearest in found:  # it grows meanwhile
        if isinstance(nearest, nn.Module):
            yield nearest
            continue
        for led_to in islice(_leads_to(nearest), MOST_REACHED - len(found)):
            if id(led_to) not in seen:
                seen.add(id(led_to))
                found.append(led_to)


def _leads_to(value: Any) -> Iterator[Any]:
    if isinstance(value, FunctionType):
        yield from vars(value).values()  # what a wrapper wraps
        # What torch and we wrap around a function leads to all modules that we know.
        if value.__globals__.get("__name__", "").partition(".")[0] not in {"torch", "dpdoctor"}:
            yield from _in_function(value)
    elif isinstance(value, (MethodType, classmethod, staticmethod)):
        yield from (getattr(value, "__self__", None), value.__func__)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    elif isinstance(value, dict):
        yield from list(value.values())
    elif not isinstance(value, (type, ModuleType)):
        if dataclasses.is_dataclass(value):  # which may have slots
            yield from structure.named(value) or ()
        yield from list(getattr(value, "__dict__", {}).values())
        yield getattr(type(value), CALL, None)


def _in_function(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it has no value yet
            yield cell.cell_contents
    yield function.__defaults__
    yield function.__kwdefaults__
    names = dict.fromkeys(_names(function.__code__))
    named = [function.__globals__[name] for name in names if name in function.__globals__]
    yield from named
    for space in named:
        if isinstance(space, (type, ModuleType)):
            yield from (vars(space)[name] for name in names if name in vars(space))


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a function, and in those that are defined inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def compiled_as(target: Callable[..., Any], arguments: dict[str, Any]) -> Callable[..., Any]:
    """Return a parallel mode's target, compiled with the script's arguments but `fullgraph`.

    torch traces no parallel wrapper as one graph: neither DistributedDataParallel's forward nor FSDP's hooks.
    """
    return torch.compile(target, **{**arguments, "fullgraph": False})
