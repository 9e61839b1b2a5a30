"""Sharded parameters where a script does not go by the call of their module: they are gathered, or saved in parts.

`fully_shard` gathers when a sharded module is called. A script that acts by `model.get_action(x)`, or looks at
`model.encoder(x)`, calls only what lies inside, without gradients. Of a checkpoint's tensors torch.save knows sharded
ones; other libraries ask a tensor for its memory, of which the whole one has none.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dpdoctor.worker.base import structure
from dpdoctor.worker.base.patches import Patches


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
        self._names = frozenset(dict(root.named_parameters()))
        self._parts: list[nn.Module] = []
        self._route(root, root)

    def made_late(self) -> str:
        """Return the name of a parameter that the module was given since; empty: of none."""
        return next((name for name, _ in self.root.named_parameters() if name not in self._names), "")

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
            elif "_compiled_call_impl" not in vars(part) and _has_parameters(part):
                # Torch calls it first, and never copies or pickles it. A class with a `__getstate__` of its own does,
                # as those of torchmetrics, which have no parameters.
                object.__setattr__(part, "_compiled_call_impl", _part(part, holder))
                self._parts.append(part)
                self._route(part, holder)

    def release(self) -> None:
        """Leave the parts as they were."""
        for part in self._parts:
            object.__delattr__(part, "_compiled_call_impl")
        self._parts.clear()


def _has_parameters(part: nn.Module) -> bool:
    return next(structure.parameters(part), None) is not None


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


def save_parts(patches: Patches) -> None:
    """Have a sharded tensor name the memory of its part, and safetensors write that part.

    Nothing is gathered: a script that saves where its loss is lowest does so on one rank and not on another.
    """
    patches.replace(DTensor, "untyped_storage", lambda tensor: tensor._local_tensor.untyped_storage())
    if importlib.util.find_spec("safetensors"):
        safetensors = importlib.import_module("safetensors.torch")
        # What looks for tied tensors is the only way into save_model.
        for name in ("save", "save_file", "_remove_duplicate_names"):
            patches.replace(safetensors, name, _saving_parts(getattr(safetensors, name)))


def _saving_parts(save: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of safetensors that takes sharded tensors in its first argument, the dict."""

    @functools.wraps(save)
    def save_part(*args: Any, **options: Any) -> Any:
        if args:
            return save(_local_parts(args[0]), *args[1:], **options)
        return save(**{**options, "tensors": _local_parts(options["tensors"])})

    return save_part


def _local_parts(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies of the parts, alone in their memory: shards are padded. Tied tensors share one."""
    copies: dict[tuple[int, torch.Size], torch.Tensor] = {}

    def part(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, DTensor):
            return tensor
        local = tensor._local_tensor
        return copies.setdefault((local.untyped_storage().data_ptr(), local.shape), local.detach().clone())

    return {name: part(tensor) for name, tensor in tensors.items()}
