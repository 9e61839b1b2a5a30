"""Training through a method: `model.loss(x)` runs the forward of a model that nobody calls.

Parallel wrappers act on a call of their module. As Lightning does for its steps, the wrapper is called and, for that
one call, the module's forward is the method. A class may have a `__call__` of its own, which passes nn.Module's by, and
which Python looks up in the class alone.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import nn

from dpdoctor.worker.base import lines, structure
from dpdoctor.worker.base.patches import Patches

CALL = "__call__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A running method, called at `line`, and its module, one of whose parts is called from inside of it."""

    module: nn.Module
    method: str
    frame: FrameType
    line: str

    def __str__(self) -> str:
        return f"{type(self.module).__name__}.{self.method}"


def entries(part: nn.Module, is_trained: Callable[[nn.Parameter], bool]) -> list[Entry]:
    """Return the methods that are running, outermost first, of modules that hold `part` and train more than it does."""
    held = {id(p) for p in structure.parameters(part)}
    found = []
    for frame in _stack():
        owner = frame.f_locals.get("self")
        if (
            isinstance(owner, nn.Module)
            and any(module is part for module in structure.submodules(owner))
            and any(is_trained(p) and id(p) not in held for p in structure.parameters(owner))
        ):
            line = lines.caller(frame.f_back)
            found.append(Entry(module=owner, method=frame.f_code.co_name, frame=frame, line=line))
    return found[::-1]


def forward_only(candidates: Sequence[Entry]) -> Entry | None:
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


def route(patches: Patches, module: nn.Module, method: str, redirect: Callable[..., Any]) -> None:
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


def _stack() -> Iterator[FrameType]:
    """Yield the frames of this thread, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
