"""What training changes: parameters, buffers, gradients, states of optimizers and scalers; copied and put back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

# What schedulers set in the groups of an optimizer, and the parameters.
_NOT_THE_OPTIMIZERS = frozenset(
    {
        "params",
        "lr",
        "initial_lr",
        "max_lr",
        "min_lr",
        "momentum",
        "initial_momentum",
        "max_momentum",
        "base_momentum",
        "betas",
        "weight_decay",
        "swa_lr",
    }
)


class Held:
    """A tensor and a copy of it in the host's memory; of a sharded one this rank's shard."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._copy = local(tensor).to("cpu", copy=True)

    def back(self) -> torch.Tensor:
        """Return the tensor, with the values that it had."""
        local(self._tensor).copy_(self._copy)
        return self._tensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a tensor on this rank, apart from autograd; call it without gradients."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


class Snapshot:
    """The state of training when this was made; `restore` gives the same tensors their values back.

    Learning rates and what else schedulers set are left alone: they go on through all windows. Other numbers in an
    optimizer's groups are its own, such as the step size that Prodigy finds.
    """

    @torch.no_grad()
    def __init__(
        self, modules: Sequence[nn.Module], optimizers: Sequence[Optimizer], scalers: Sequence[GradScaler]
    ) -> None:
        trained = parameters(modules, optimizers)
        self._parameters = [Held(parameter) for parameter in trained]
        self._gradients = [(p, None if p.grad is None else Held(p.grad)) for p in trained]
        self._buffers = [(owner, name, Held(buffer)) for owner, name, buffer in _buffers(modules)]
        self._states = [(optimizer, _mapped(dict(optimizer.state), Held)) for optimizer in optimizers]
        self._groups = [
            (group, _mapped({key: value for key, value in group.items() if key not in _NOT_THE_OPTIMIZERS}, Held))
            for optimizer in optimizers
            for group in optimizer.param_groups
        ]
        self._scalers = [(scaler, scaler.state_dict()) for scaler in scalers]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back."""
        for held in self._parameters:
            held.back()
        for parameter, gradient in self._gradients:
            parameter.grad = None if gradient is None else gradient.back()
        for owner, name, buffer in self._buffers:
            owner._buffers[name] = buffer.back()
        for optimizer, state in self._states:
            optimizer.state.clear()
            optimizer.state.update(_mapped(state, lambda held: held.back()))
        for group, entries in self._groups:
            group.update(_mapped(entries, lambda held: held.back()))
        for scaler, scale in self._scalers:
            scaler.load_state_dict(scale)
            _forget_overflows(scaler)


def num_bytes(modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> int:
    """Return the memory of a Snapshot; gradients are counted for all parameters, whether they have one now or not."""
    total = 0

    def add(tensor: torch.Tensor) -> None:
        nonlocal total
        total += local(tensor).nbytes

    with torch.no_grad():
        for parameter in parameters(modules, optimizers):
            add(parameter)
            add(parameter)
        for _, _, buffer in _buffers(modules):
            add(buffer)
        for optimizer in optimizers:
            _mapped(dict(optimizer.state), add)
    return total


def parameters(modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> list[nn.Parameter]:
    """Return all that is trained, once each; FSDP's modules may show others than their optimizers hold."""
    held = (p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"])
    own = (p for module in modules for p in module.parameters())
    found: Iterable[nn.Parameter] = held if optimizers else own
    return list({id(parameter): parameter for parameter in found}.values())


def _buffers(modules: Sequence[nn.Module]) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
    for module in modules:
        for owner in module.modules():
            for name, buffer in owner._buffers.items():
                if buffer is not None:
                    yield owner, name, buffer


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested containers anew, with `change` of each tensor, or of what stands for one, in them."""
    if isinstance(value, (torch.Tensor, Held)):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(_mapped(item, change) for item in value)
    return value


def _forget_overflows(scaler: GradScaler) -> None:
    """Have the update that follows this step see none: each rank would see its own, and scale differently after."""
    for state in scaler._per_optimizer_states.values():
        for found in state["found_inf_per_device"].values():
            found.zero_()
