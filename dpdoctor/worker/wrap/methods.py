"""Training through a method: `model.loss(x)` runs the forward of a model that nobody calls.

Parallel wrappers act on a call of their module. As Lightning does for its steps, the wrapper is called and, for that
one call, the module's forward is the method.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import nn

from dpdoctor.worker.base import modules


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A running method, and the module that it belongs to, from inside which one of that module's parts is called."""

    module: nn.Module
    method: str
    frame: FrameType

    def __str__(self) -> str:
        return f"{type(self.module).__name__}.{self.method}"


def entries(part: nn.Module, is_trained: Callable[[nn.Parameter], bool]) -> list[Entry]:
    """Return the methods that are running, outermost first, of modules that hold `part` and train more than it does."""
    held = {id(p) for p in modules.parameters(part)}
    found = []
    for frame in _stack():
        owner = frame.f_locals.get("self")
        if (
            isinstance(owner, nn.Module)
            and any(module is part for module in modules.submodules(owner))
            and any(is_trained(p) and id(p) not in held for p in modules.parameters(owner))
        ):
            found.append(Entry(module=owner, method=frame.f_code.co_name, frame=frame))
    return found[::-1]


def forward_only(candidates: Sequence[Entry]) -> Entry | None:
    """Return the outermost of the methods that have returned, asked from inside a backward pass; None: all still run.

    One that still runs holds the backward pass as well, and perhaps the whole training loop.
    """
    running = {id(frame) for frame in _stack()}
    for entry in candidates:
        is_method = callable(getattr(type(entry.module), entry.method, None))
        if is_method and id(entry.frame) not in running:
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


def _stack() -> Iterator[FrameType]:
    """Yield the frames of this thread, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
