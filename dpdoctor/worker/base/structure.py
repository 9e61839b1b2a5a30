"""What a script's values and modules are made of: tensors in containers, dense or not; parts and parameters of modules.

A module is looked at without asking its own methods: a script's may raise, or be something else.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from torch.optim import Optimizer


def tensors(value: Any, most: int = sys.maxsize) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested containers, the nearest first, among no more than `most` values."""
    return (found for found in nested(value, most) if isinstance(found, torch.Tensor))


def nested(value: Any, most: int = sys.maxsize) -> Iterator[Any]:
    """Yield a value and what it holds in nested containers, the nearest first; no more than `most` of them.

    A container that leads back to itself is looked into once.
    """
    found, looked_into = [value], set()
    for nearest in found:  # it grows meanwhile
        yield nearest
        if isinstance(nearest, torch.Tensor) or len(found) == most or id(nearest) in looked_into:
            continue
        held = nearest if isinstance(nearest, (list, tuple)) else named(nearest)
        if held is not None:
            looked_into.add(id(nearest))
            found += islice(held, most - len(found))


def named(value: Any) -> Sequence[Any] | None:
    """Return what a mapping or a dataclass holds by names; None: it is neither."""
    if isinstance(value, Mapping):
        return tuple(value.values())
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, nn.Module)):
        return tuple(getattr(value, field.name, None) for field in dataclasses.fields(value))
    return None


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is neither sparse nor nested, nor laid out in another way of its own."""
    return tensor.layout == torch.strided and not tensor.is_nested


def is_mapped(tensor: torch.Tensor) -> bool:
    """Return whether a transform of torch.func runs, such as vmap, and the tensor stands for many."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return a tensor's shape; of a nested one, which has none, how many rows it holds."""
    return (tensor.size(0),) if tensor.is_nested else tuple(tensor.shape)


def parts(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return dense tensors that hold all that a tensor holds."""
    if tensor.is_nested:
        return tensor.unbind()
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in {torch.sparse_csc, torch.sparse_bsc}:
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,) if is_dense(tensor) else (tensor.to_dense(),)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a tensor on this rank, apart from autograd; call it without gradients."""
    from torch.distributed.tensor import DTensor  # takes its time, which processes of a loader need not spend

    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def sharded_elements(parts: Iterable[nn.Module]) -> dict[int, int]:
    """Return by its id how many elements each parameter has on all ranks together that FSDP1 shards.

    Of these parts: its flat parameters, and the script's own where they stay (use_orig_params). All others are whole
    or, as a DTensor, tell the whole themselves.
    """
    found: dict[int, int] = {}
    for part in parts:
        flat = getattr(getattr(part, "_handle", None), "flat_param", None)
        numels = getattr(flat, "_numels", None)
        if flat is not None and numels is not None:
            found[id(flat)] = sum(numels)
            found |= zip(map(id, flat._params or ()), numels, strict=False)
    return found


def submodules(module: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and all below it, each once; as `modules()`, for which they must be hashable."""
    known, found = {id(module)}, [module]
    while found:
        one = found.pop()
        yield one
        below = [child for child in vars(one).get("_modules", {}).values() if child is not None]
        found += [child for child in reversed(below) if id(child) not in known]
        known.update(map(id, below))


def parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of a module and of all below it, each once; as `parameters()`, which may be overridden."""
    known: set[int] = set()
    for one in submodules(module):
        for parameter in own_parameters(one):
            if id(parameter) not in known:
                known.add(id(parameter))
                yield parameter


def own_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that a module holds itself; as `parameters(recurse=False)`."""
    return [parameter for parameter in vars(module).get("_parameters", {}).values() if parameter is not None]


def by_names(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a module and of all below it by all of their names, of which shared ones have several."""
    for name, parameter in vars(module).get("_parameters", {}).items():
        if parameter is not None:
            yield prefix + name, parameter
    for name, child in vars(module).get("_modules", {}).items():
        if child is not None:
            yield from by_names(child, f"{prefix}{name}.")


def trained(modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> list[nn.Parameter]:
    """Return all that is trained, once each; FSDP's modules may show others than their optimizers hold."""
    held = (p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"])
    own = (p for module in modules for p in module.parameters())
    found: Iterable[nn.Parameter] = held if optimizers else own
    return list({id(parameter): parameter for parameter in found}.values())
