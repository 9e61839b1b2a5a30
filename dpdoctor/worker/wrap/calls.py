"""How a script calls its model where it calls no module plainly: through a method, or in a function that it compiled.

Training through a method, `model.loss(x)`, runs the forward of a model that nobody calls, where parallel wrappers act
on a call of their module. As Lightning does for its steps, the wrapper is called and, for that one call, the module's
forward is the method. A class may have a `__call__` of its own, which passes nn.Module's by, and which Python looks up
in the class alone.

Modules that the script compiled are wrapped first and compiled after, as their author would. The order matters:
DistributedDataParallel around a compiled module reduces its gradients later than a compiled DistributedDataParallel
does, and would measure another program. A compiled function that calls a model is traced with it as one graph, past
every wrapper of the model. It runs as Python, and the model is compiled in its place.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from dpdoctor.worker.base import lines, structure
from dpdoctor.worker.base.patches import Patches

CALL = "__call__"
# A function may lead to all that a script has.
MOST_REACHED = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningMethod:
    """A running method, called at `line`, and its module, one of whose parts is called from inside of it."""

    module: nn.Module
    method: str
    frame: FrameType
    line: str

    def __str__(self) -> str:
        return f"{type(self.module).__name__}.{self.method}"

    @property
    def calls_backward(self) -> bool:
        """Return whether its code calls something of the name `backward`."""
        return "backward" in self.frame.f_code.co_names


def running_methods(part: nn.Module, is_trained: Callable[[nn.Parameter], bool]) -> list[RunningMethod]:
    """Return the methods that are running, outermost first, of modules that hold `part` and train more than it does."""
    held = {id(p) for p in structure.parameters(part)}
    found = []
    for frame in _stack():
        with lines.local_variables(frame) as held_by_frame:
            owner = held_by_frame.get("self")
        if (
            isinstance(owner, nn.Module)
            and any(module is part for module in structure.submodules(owner))
            and any(is_trained(p) and id(p) not in held for p in structure.parameters(owner))
        ):
            line = lines.caller(frame.f_back)
            found.append(RunningMethod(module=owner, method=frame.f_code.co_name, frame=frame, line=line))
    return found[::-1]


def outermost_returned(candidates: Sequence[RunningMethod]) -> RunningMethod | None:
    """Return the outermost of the methods that have returned, asked from inside a backward pass; None: all still run.

    One that still runs holds the backward pass as well, and perhaps the whole training loop. Of those that Python calls
    by itself none but `__call__` is a forward.
    """
    running = {id(frame) for frame in _stack()}
    for entry in candidates:
        is_method = callable(getattr(type(entry.module), entry.method, None))
        is_called = entry.method == CALL or not entry.method.startswith("__")
        if is_method and is_called and id(entry.frame) not in running:
            return entry
    return None


def as_forward(module: nn.Module, method: Callable[..., Any], target: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call of `target`, a wrapper of `module`, for which the module's forward is `method`."""
    attributes = vars(module)

    def call(*args: Any, **kwargs: Any) -> Any:
        own = attributes.get("forward")

        def restore() -> None:
            if own is None:
                attributes.pop("forward", None)
            else:
                attributes["forward"] = own

        def forward(*args: Any, **kwargs: Any) -> Any:
            restore()  # the method may call the real one
            return method(*args, **kwargs)

        attributes["forward"] = forward
        try:
            return target(*args, **kwargs)
        finally:
            restore()

    return call


def route_method(patches: Patches, module: nn.Module, method: str, redirect: Callable[..., Any]) -> None:
    """Have a method of this module, and of no other one of its class, be `redirect`."""
    if method != CALL:
        patches.replace(module, method, redirect)
        return
    kind = type(module)
    own_call = kind.__call__

    @functools.wraps(own_call)
    def call(called: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        return redirect(*args, **kwargs) if called is module else own_call(called, *args, **kwargs)

    patches.replace(kind, CALL, call)


def bound_methods(method: Any) -> list[MethodType]:
    """Return the objects that are this method of this module, one for each time that somebody took it by its name."""
    if not isinstance(method, MethodType):
        return []
    holders = gc.get_referrers(method.__self__)
    return [held for held in holders if isinstance(held, MethodType) and held == method]


def _stack() -> Iterator[FrameType]:
    """Yield the frames of this thread, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


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
