"""fused_optimizer: optimizers update all parameters of a group in one kernel, as `fused=True` has them do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dpdoctor import units
from dpdoctor.catalog import FUSED
from dpdoctor.worker.ablations._base import Ablation, AblationContext, Fault

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

# Optimizers that take less of a step gain nothing that would be told. On a GPU the host's time does not tell.
LEAST_SHARE = 0.05
SMALL = "optimizers take {} of a step"
NO_FORM = "torch has no fused form of {}"
FUSED_ALREADY = "the script's optimizers are fused already"
UNFUSABLE = "{} trains {}, and a fused optimizer takes dense floating-point numbers alone"
OF_CLASS = "torch's fused form of {} takes no {}"
ON_CPU = "torch has a fused form of Adagrad for the CPU alone"
COMPILED = "a compiled function takes the optimizer's steps"
ANOTHER = "the script built another optimizer in its window"

_Group = dict[str, Any]


class FusedOptimizer(Ablation):
    """Sets what `fused=True` sets, in the groups of torch's own optimizers, and takes it back."""

    priority = 6
    calls_others = True

    def __init__(self) -> None:
        self._groups: list[tuple[Optimizer, _Group, dict[str, Any]]] = []
        # Where the counts of steps were, of which a fused form takes those beside the parameters alone, as float32.
        self._places: dict[torch.Tensor, tuple[torch.device, torch.dtype]] = {}
        self._before: set[int] = set()

    def unfit(self, context: AblationContext) -> str | None:
        """Return why the script gains nothing by it, or cannot take it."""
        optimizers, share = context.optimizers.alive(), context.optimizer_share()
        if share is not None and share < LEAST_SHARE:
            return SMALL.format(units.share(share))
        if context.optimizers.are_compiled:
            return COMPILED
        named = [optimizer for optimizer in optimizers if _has_form(optimizer)]
        if not named:
            others = dict.fromkeys(type(optimizer).__name__ for optimizer in optimizers)
            return NO_FORM.format(" and ".join(others) or "what trains")
        if not any(map(_plain_groups, named)):
            return FUSED_ALREADY
        return next(filter(None, map(_unfusable, named)), None)

    def begin(self, context: AblationContext) -> None:
        """Fuse."""
        import torch

        optimizers = context.optimizers.alive()
        self._before = set(map(id, optimizers))
        for optimizer in filter(_has_form, optimizers):
            for group in _plain_groups(optimizer):
                self._groups.append((optimizer, group, {name: group[name] for name in ("fused", "foreach")}))
                group.update(fused=True, foreach=False)
                for parameter, state in _counts(optimizer, group):
                    self._places[parameter] = state["step"].device, state["step"].dtype
                    state["step"] = state["step"].to(parameter.device, torch.float32)

    def end(self, context: AblationContext) -> Fault | None:
        """Update as before."""
        for optimizer, group, before in self._groups:
            group.update(before)
            for parameter, state in _counts(optimizer, group):
                place = self._places.get(parameter)
                if place is not None:
                    state["step"] = state["step"].to(*place)
                elif not group.get("capturable"):  # it took its first step meanwhile
                    state["step"] = state["step"].cpu()
        self._groups, self._places = [], {}
        is_all = self._before.issuperset(map(id, context.optimizers.alive()))
        return None if is_all else Fault(reason=ANOTHER, final=False)


def _has_form(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is torch's own, or takes its steps as that does, and has a fused form."""
    import torch

    own = next((kind for name in FUSED if isinstance(optimizer, kind := getattr(torch.optim, name))), None)
    is_torchs = own is not None and inspect.unwrap(type(optimizer).step) is inspect.unwrap(own.step)
    return is_torchs and all("fused" in group for group in optimizer.param_groups)  # older ones of torch's have none


def _plain_groups(optimizer: Optimizer) -> list[_Group]:
    return [group for group in optimizer.param_groups if not group.get("fused")]


def _unfusable(optimizer: Optimizer) -> str | None:
    """Return what of an optimizer's parameters, or of how it is to take its steps, no fused form takes."""
    import torch

    for group in _plain_groups(optimizer):
        if group.get("differentiable"):
            return UNFUSABLE.format(type(optimizer).__name__, "through its own steps (differentiable=True)")
        for parameter in group["params"]:
            gradient = parameter.grad
            if not torch.is_floating_point(parameter):
                return UNFUSABLE.format(type(optimizer).__name__, f"parameters of type {parameter.dtype}")
            if gradient is not None and gradient.layout != torch.strided:
                return UNFUSABLE.format(type(optimizer).__name__, f"with gradients of layout {gradient.layout}")
            if type(parameter) not in {torch.Tensor, torch.nn.Parameter} and not _takes(optimizer, parameter):
                return OF_CLASS.format(type(optimizer).__name__, type(parameter).__name__)
            if parameter.device.type != "cpu" and isinstance(optimizer, torch.optim.Adagrad):
                return ON_CPU
    return None


def _takes(optimizer: Optimizer, parameter: torch.Tensor) -> bool:
    """Return whether an optimizer's fused form takes a parameter of another class: of shards, Adam's and AdamW's do."""
    import torch
    from torch.distributed.tensor import DTensor

    return isinstance(parameter, DTensor) and isinstance(optimizer, torch.optim.Adam)


def _counts(optimizer: Optimizer, group: _Group) -> Iterator[tuple[torch.Tensor, dict[str, Any]]]:
    """Yield each parameter of a group of which steps are counted, with its state: the count is its `step`."""
    import torch

    for parameter in group["params"]:
        state = optimizer.state.get(parameter)
        if state is not None and isinstance(state.get("step"), torch.Tensor):
            yield parameter, state


ABLATION = FusedOptimizer()
