"""Finds the modules that a script trains, at their first training forward, and reroutes their calls.

The unit is the outermost module whose call is entered with gradients enabled and that owns parameters which an
optimizer holds. Nothing is wrapped earlier: until then the script may still move, load, freeze or copy its model.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import nn
from torch.optim import Optimizer

from dpdoctor.records import Unit
from dpdoctor.worker import lines
from dpdoctor.worker.compiled import Compilations, compiled_as
from dpdoctor.worker.modes._base import AdoptionError, Conversion, Mode
from dpdoctor.worker.patches import Patches
from dpdoctor.worker.phases import FORWARD, PhaseClock
from dpdoctor.worker.tally import Tally


class Redirect:
    """Stands in an adopted module's `_compiled_call_impl`, which torch calls first and never copies or pickles.

    Training forwards go to `target`; forwards without gradients and those that `target` makes itself go straight to
    the module, so that an evaluation on one rank waits for nobody.
    """

    def __init__(
        self, module: nn.Module, target: Callable[..., Any], watch: Watch, own_call: Callable[..., Any] | None = None
    ) -> None:
        self._module = module
        self._plain: Callable[..., Any] = module._call_impl
        # What the script would call by itself: its own compilation of the module, if it made one.
        self._own_call = own_call or self._plain
        self._target = target
        self._watch = watch
        self._thread: int | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Traced by dynamo, from inside a compiled wrapper: the answer is a constant to it, a thread's number is not.
        if torch.compiler.is_compiling() or self._thread == threading.get_ident():
            return self._plain(*args, **kwargs)
        if not torch.is_grad_enabled():
            self._watch.tally.evaluated()
            return self._own_call(*args, **kwargs)
        return self._train(args, kwargs)

    def _train(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        watch = self._watch
        watch.training_forward(self._module, args, kwargs)
        depth = watch.phases.push(FORWARD)
        self._thread = threading.get_ident()
        try:
            return self._target(*args, **kwargs)
        finally:
            self._thread = None
            watch.phases.pop(depth)


class Watch:
    """What a forward reports to. `forwards` counts, by id of the module, the first forward after each backward."""

    def __init__(self, phases: PhaseClock, tally: Tally, check: Callable[[], None]) -> None:
        self.phases = phases
        self.tally = tally
        self._check = check
        self.keep_inputs = False
        self.forwards: Counter[int] = Counter()
        self._open: set[int] = set()
        self.inputs: list[torch.Tensor] = []

    def training_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A training forward of the module begins on these arguments."""
        self._check()
        if id(module) not in self._open:
            self._open.add(id(module))
            self.forwards[id(module)] += 1
        first = args[0] if args and isinstance(args[0], torch.Tensor) else next(_tensors((args, kwargs)), None)
        num_entered = first.shape[0] if first is not None and first.dim() else 0
        self.tally.trained(num_entered, in_eval_mode=not module.training)
        if self.keep_inputs:
            self.inputs, self.keep_inputs = list(_tensors((args, kwargs))), False

    def backward_ended(self) -> None:
        """A backward pass ended: the next forward of a module is a new pass over its parameters."""
        self._open.clear()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested containers, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """One unit: its class as the script wrote it, where it is called, the parameters that optimizers hold from now on.

    The module itself shows others while FSDP has it gathered.
    """

    module: nn.Module
    name: str
    line: str
    parameters: dict[str, nn.Parameter]


class Adopter:
    """Looks for units from the script's first line until `settle`; from then on it costs nothing."""

    def __init__(
        self,
        mode: Mode,
        patches: Patches,
        watch: Watch,
        optimizers: Callable[[], list[Optimizer]],
        fail: Callable[[str], NoReturn],
    ) -> None:
        self._mode = mode
        self._patches = patches
        self._watch = watch
        self._optimizers = optimizers
        self._fail = fail
        self._inside = threading.local()
        self._compilations = Compilations()
        self._adopted: list[Adopted] = []
        self.without_optimizer = False
        self.warnings: list[str] = []

    def seek(self, *, has_unused: bool, fsdp_wrap: tuple[str, ...] | None = None) -> None:
        """Begin to look at every module call. `has_unused` and `fsdp_wrap` are Conversion's."""
        self._has_unused, self._fsdp_wrap = has_unused, fsdp_wrap
        original = nn.Module.__call__
        inside = self._inside

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "unit", False) or not torch.is_grad_enabled() or not self._is_unit(module):
                return original(module, *args, **kwargs)
            inside.unit = True
            try:
                if not isinstance(module._compiled_call_impl, Redirect) and not self._is_part(module):
                    self._adopt(module)
                return original(module, *args, **kwargs)
            finally:
                inside.unit = False

        self._call: Callable[..., Any] | None = call
        self._compilations.watch(self._patches)
        self._patches.replace(nn.Module, "__call__", call)

    def settle(self) -> None:
        """Stop looking: only the adopted modules' own calls are seen now."""
        self._call = None
        self._patches.restore(nn.Module, "__call__")

    def is_trained(self) -> Callable[[nn.Parameter], bool]:
        """Return the test for what the script trains: what its optimizers hold, else what requires a gradient."""
        optimizers = self._optimizers()
        if not optimizers:
            return lambda parameter: self.without_optimizer and parameter.requires_grad
        held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
        return lambda parameter: id(parameter) in held

    def _is_unit(self, module: nn.Module) -> bool:
        parameters = module.parameters()
        first = next(parameters, None)
        if first is None or torch._C._is_tracing():
            return False
        is_trained = self.is_trained()
        return is_trained(first) or any(map(is_trained, parameters))

    def _adopt(self, module: nn.Module) -> None:
        line = lines.caller()
        self._look_for_method_entry(module, line)
        inner = self._compilations.inner(module)
        self._release_parts_of(inner)
        name = type(inner).__name__
        own_call = module._compiled_call_impl or module._call_impl
        how = Conversion(has_unused=self._has_unused, fsdp_wrap=self._fsdp_wrap, optimizers=tuple(self._optimizers()))
        try:
            target = self._mode.convert(inner, how)
        except (AdoptionError, RuntimeError, ValueError, TypeError) as error:
            self._fail(f"{name}, called at {line}, could not be converted: {error}")
        arguments = self._compilations.arguments(module)
        if arguments is not None:
            target = self._unseen(self._compiled(target, own_call, arguments))
        redirect = Redirect(inner, target, self._watch, own_call)
        self._patches.replace(module, "_compiled_call_impl", redirect)
        self._watch.phases.belongs_here()
        parameters = dict(inner.named_parameters())
        self._adopted.append(Adopted(module=module, name=name, line=line, parameters=parameters))

    def _is_part(self, module: nn.Module) -> bool:
        """Return whether `module` lies inside an adopted one: a call of a part alone is no new unit."""
        return any(part is module for adopted in self._adopted for part in adopted.module.modules())

    def _release_parts_of(self, module: nn.Module) -> None:
        """Undo what was adopted before and is now called from inside `module`, or two wrappers would reduce it."""
        parts = {id(part) for part in module.modules()}
        for adopted in [adopted for adopted in self._adopted if id(adopted.module) in parts]:
            self._patches.restore(adopted.module, "_compiled_call_impl")
            self._adopted.remove(adopted)

    def _compiled(
        self, target: Callable[..., Any], own_call: Callable[..., Any], arguments: dict[str, Any]
    ) -> Callable[..., Any]:
        """Return the script's own compilation where the module stays as it is, else one around what the mode made."""
        if not self._mode.distributed:
            return own_call
        if arguments.get("fullgraph"):
            self.warnings.append("compiled without fullgraph=True: torch cannot trace a parallel module as one graph")
        return compiled_as(target, arguments)

    def _unseen(self, target: Callable[..., Any]) -> Callable[..., Any]:
        """Return a compiled target that runs with torch's own Module.__call__: dynamo would trace ours."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._call is None:
                return target(*args, **kwargs)
            self._patches.restore(nn.Module, "__call__")
            try:
                return target(*args, **kwargs)
            finally:
                self._patches.replace(nn.Module, "__call__", self._call)

        return call

    def _look_for_method_entry(self, module: nn.Module, line: str) -> None:
        """Meet the trap `model.loss(x)` -> `self.forward(x)`: the model is never called, only its parts are."""
        entry = _entered_by_method(module, self.is_trained())
        if entry is None:
            return
        text = (
            f"the forward is reached through {entry} (its part {type(module).__name__} is called at {line}); parallel "
            "wrappers act only on a call of the model itself. Call the model, and let its forward do what this does"
        )
        if self._mode.distributed:
            self._fail(f"gradients would not be synchronised: {text}")
        self.warnings.append(text)

    @property
    def modules(self) -> list[nn.Module]:
        """Return the adopted modules, in order."""
        return [adopted.module for adopted in self._adopted]

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of all adopted modules."""
        return [p for adopted in self._adopted for p in adopted.parameters.values()]

    def unadopted(self) -> tuple[str, ...]:
        """Return trained parameters that have a gradient but belong to no adopted module, by shape."""
        adopted = {id(p) for p in self.parameters()}
        return tuple(
            f"a parameter of shape {tuple(p.shape)} in {type(optimizer).__name__}"
            for optimizer in self._optimizers()
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None and id(p) not in adopted
        )

    def units(self, touched: Container[int] = ()) -> tuple[Unit, ...]:
        """Return what was adopted; `touched` has the ids of parameters that are known to get a gradient."""
        return tuple(
            Unit(
                name=adopted.name,
                line=adopted.line,
                num_parameters=sum(p.numel() for p in adopted.parameters.values()),
                trainable_bytes=sum(
                    p.numel() * p.element_size() for p in adopted.parameters.values() if p.requires_grad
                ),
                unused=tuple(
                    n
                    for n, p in adopted.parameters.items()
                    if p.requires_grad and p.grad is None and id(p) not in touched
                ),
            )
            for adopted in self._adopted
        )


def _entered_by_method(module: nn.Module, is_trained: Callable[[nn.Parameter], bool]) -> str | None:
    """Return `Class.method` of a module from inside which `module` is called, if that one trains more than `module`."""
    held = {id(p) for p in module.parameters()}
    frame: FrameType | None = sys._getframe(1)
    found = None
    while frame is not None:
        outer = frame.f_locals.get("self")
        if (
            isinstance(outer, nn.Module)
            and any(part is module for part in outer.modules())
            and any(is_trained(p) and id(p) not in held for p in outer.parameters())
        ):
            found = f"{type(outer).__name__}.{frame.f_code.co_name}"
        frame = frame.f_back
    return found
