"""Sharded parameters for what runs without gradients past the call of their module: its methods and parts alone.

`fully_shard` gathers when a sharded module is called. A script that acts by `model.get_action(x)`, or looks at
`model.encoder(x)`, calls only what lies inside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dpdoctor.worker.base import structure


class Shards:
    """A module that was sharded just now, whose parts and methods may be called without gradients from here on.

    All ranks must make these calls, as they must those of the module itself.

    Attributes:
        root: the module, which shows whole parameters while it is gathered.
        parameters: ids of its sharded ones.
    """

    def __init__(self, root: nn.Module) -> None:
        assert isinstance(root, FSDPModule)
        # Else the first block that is called past the module would take itself for the root.
        root._get_fsdp_state()._lazy_init()
        self.root = root
        self.parameters = frozenset(map(id, root.parameters()))
        self._parts: list[nn.Module] = []
        self._route(root, root)

    def method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of the module, to be called without gradients."""

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with _gathered(self.root):
                return method(*args, **kwargs)

        return call

    def _route(self, module: nn.Module, holder: nn.Module) -> None:
        """Have each part of `module` gather what it needs of `holder`, the innermost sharded module around it."""
        for part in module.children():
            if isinstance(part, FSDPModule):
                self._route(part, part)
            elif "_compiled_call_impl" not in vars(part):
                # Torch calls it first, and never copies or pickles it.
                object.__setattr__(part, "_compiled_call_impl", _part(part, holder))
                self._parts.append(part)
                self._route(part, holder)

    def release(self) -> None:
        """Leave the parts as they were."""
        for part in self._parts:
            object.__delattr__(part, "_compiled_call_impl")
        self._parts.clear()


def _part(part: nn.Module, holder: nn.Module) -> Callable[..., Any]:
    plain: Callable[..., Any] = part._call_impl

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            return plain(*args, **kwargs)
        with _gathered(holder):
            return plain(*args, **kwargs)

    return call


def share_attributes(sharded: nn.Module) -> None:
    """Have a sharded module's own parameters share what a script notes on them with the whole ones of its forward."""
    shards = list(_own_parameters(sharded))
    with _gathered(sharded):
        for whole, shard in zip(_own_parameters(sharded), shards, strict=True):
            whole.__dict__ = shard.__dict__


@contextmanager
def _gathered(sharded: nn.Module) -> Iterator[None]:
    """Have a sharded module's own parameters whole, unless they are: it runs now, or an evaluation left them so."""
    assert isinstance(sharded, FSDPModule)
    if not isinstance(next(_own_parameters(sharded), None), DTensor):
        yield
        return
    sharded.unshard()
    try:
        yield
    finally:
        sharded.reshard()


def _own_parameters(sharded: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters that are gathered with a module: not those of sharded modules inside of it."""
    yield from structure.own_parameters(sharded)
    for part in sharded.children():
        if not isinstance(part, FSDPModule):
            yield from _own_parameters(part)
