"""Finds the modules that a script trains, at their first training forward, and reroutes their calls.

The unit is the outermost module whose call is entered with gradients enabled and that owns a parameter which an
optimizer holds and which requires a gradient just then: who trains two models in turn freezes one of them meanwhile.
Nothing is wrapped earlier: until then the script may still move, load, freeze or copy its model.
"""

from __future__ import annotations

import functools
import gc
import inspect
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from dpdoctor.records import RUNS_AS_PYTHON, WrappedModule
from dpdoctor.worker.base import lines, structure
from dpdoctor.worker.base.mode import ConversionError, Mode, WrapOptions
from dpdoctor.worker.base.patches import Patches, around_compiled
from dpdoctor.worker.timing.phases import BACKWARD
from dpdoctor.worker.wrap.calls import (
    CALL,
    Compilations,
    Function,
    RunningMethod,
    as_forward,
    bound_methods,
    compiled_as,
    outermost_returned,
    reached,
    route_method,
    running_methods,
)
from dpdoctor.worker.wrap.eval_mode import EvalMode
from dpdoctor.worker.wrap.redirect import Redirect, Watch
from dpdoctor.worker.wrap.sharding import replace_everywhere

MADE_ANEW = (
    "{}, called at {}, is made anew around the same parameters, and once measuring begins only a module that stays is "
    "seen"
)
ONE_MORE = (
    "{}, called at {}, is one more of its class around the same parameters, which a parallel mode wraps in one module "
    "that stays"
)
MAKE_ONCE = ". Make it once, before the training loop, or train a module of your own that makes it in its forward"
UNSEEN = ": the time of forward passes is not told from that of the script's other code, and samples are not counted"
AS_PYTHON = (
    f"{{}}, compiled at {{}}, calls {{}}, which torch would trace past any wrapper: {RUNS_AS_PYTHON}, and the model "
    "that it calls first is compiled in its place"
)
IN_GRAPH = (
    ". {}, compiled at {}, is a graph in which no call of a module is seen: compile the model instead, "
    "model = torch.compile(model)"
)
TRAINS_IN_GRAPH = (
    "{}, compiled at {}, runs the backward pass, and the forward before it in a graph in which no call of a module is "
    "seen"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapped:
    """One unit: its class as the script wrote it, where it is called, the parameters that optimizers hold from now on.

    The module itself shows others while FSDP has it gathered. `not_frozen` has the names of those that required a
    gradient when it was wrapped.
    """

    module: nn.Module
    name: str
    line: str
    parameters: dict[str, nn.Parameter]
    not_frozen: frozenset[str]

    def trained(self) -> list[nn.Parameter]:
        """Return the parameters that require a gradient, or did when it was wrapped: it may be frozen for a while."""
        return [p for name, p in self.parameters.items() if p.requires_grad or name in self.not_frozen]


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """A part that methods of its model called at `line`; which of them runs the forward, the first backward tells."""

    part: nn.Module
    line: str
    entries: list[RunningMethod]


class Wrapping:
    """Looks for units from the script's first line until `settle`; from then on it costs nothing.

    Attributes:
        awaited: parts of which the end of a backward pass is to tell more.
        by_copies: the optimizers hold copies or shards of what is trained, such as weights in full precision; whatever
            requires a gradient is.
        doubts_copies: no optimizer has stepped since that seemed so.
        made_anew: Conversion's.
        passed_by: the first module, and its line in words, that was called with gradients on and held none of what
            optimizers did then, though its parameters require gradients; looked for while nothing is wrapped.
        routed: methods that stand for their model's call, with the ids of their modules.
        uncalled: methods that stand for their model's call since a step before, like Model.loss, and were not called.
    """

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
        self._compilations = Compilations(watch.batch_dims.something_is_compiled)
        self._eval_mode = EvalMode(patches)
        self._wrapped: list[Wrapped] = []
        self.awaited: list[Awaited] = []
        self.uncalled: list[str] = []
        self._routed_in_step: list[str] = []
        # Modules by id that were not called since one like them came, and what is to be said of that one.
        self._passed_over: dict[int, str] = {}
        self._targets: dict[int, Callable[..., Any]] = {}
        self._by_parts: set[int] = set()
        self._released: set[int] = set()
        self.routed: set[tuple[int, str]] = set()
        self.without_optimizer = self.by_copies = self.doubts_copies = False
        self.has_unused = False
        self.made_anew = ""
        self.passed_by: tuple[weakref.ref[nn.Module], str] | None = None
        self.warnings: list[str] = []

    def seek(self, *, unused: Iterable[str] = (), fsdp_wrap: tuple[str, ...] | None = None) -> None:
        """Begin to look at every module call.

        `unused` names parameters that got no gradient in the baseline; `fsdp_wrap` is WrapOptions'.
        """
        self._unused, self._fsdp_wrap = frozenset(unused), fsdp_wrap
        original = nn.Module.__call__
        inside = self._inside

        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            is_over = self._call is None  # and somebody has put another call around this one
            if is_over or getattr(inside, "unit", False) or not torch.is_grad_enabled() or not self._is_unit(module):
                plain = original if self._compilations.arguments(module) is None else self._unseen(original)
                return plain(module, *args, **kwargs)
            inside.unit = True
            try:
                is_wrapped = isinstance(module._compiled_call_impl, Redirect)
                if is_wrapped:
                    self._passed_over.pop(id(self._compilations.inner(module)), None)
                is_new = not (is_wrapped or self._is_computed_again(module) or self._is_part(module))
                if is_wrapped and len(self._wrapped) > 1:
                    self._release_parts_of(self._compilations.inner(module))
                self._called_by(getattr(inside, "functions", ()), module, is_new=is_new)
                if is_new:
                    if self._mode.distributed and any(map(is_lazy, structure.parameters(module))):
                        # It makes its parameters here; torch's wrappers take none that have no shape yet.
                        with torch.no_grad():
                            original(module, *args, **kwargs)
                    self._wrap(module)
                return original(module, *args, **kwargs)
            finally:
                inside.unit = False

        self._call: Callable[..., Any] | None = call
        self._compilations.watch(self._patches, self._unseen, self._as_python)
        self._patches.replace(nn.Module, "__call__", call)
        if self._mode.distributed:
            self._eval_mode.watch()

    def settle(self) -> None:
        """Stop looking: only the wrapped modules' own calls are seen now."""
        self._leave_made_anew()
        self._call = None
        self._patches.restore(nn.Module, "__call__")
        self._eval_mode.settle()

    def is_trained(self) -> Callable[[nn.Parameter], bool]:
        """Return the test for what the script trains: what its optimizers hold, else what requires a gradient."""
        optimizers = self._optimizers()
        if not optimizers:
            return lambda parameter: self.without_optimizer and parameter.requires_grad
        if self.by_copies:
            return lambda parameter: parameter.requires_grad
        return self._is_held()

    def _is_held(self) -> Callable[[nn.Parameter], bool]:
        held = {id(p) for optimizer in self._optimizers() for group in optimizer.param_groups for p in group["params"]}
        return lambda parameter: id(parameter) in held

    def _is_unit(self, module: nn.Module) -> bool:
        not_frozen = (parameter for parameter in structure.parameters(module) if parameter.requires_grad)
        first = next(not_frozen, None)
        if first is None or torch._C._is_tracing():
            return False
        if self.doubts_copies and any(map(self._is_held(), structure.parameters(module))):
            self._give_up_copies()
        is_trained = self.is_trained()
        is_unit = is_trained(first) or any(map(is_trained, not_frozen))
        if not (is_unit or self._wrapped or self.passed_by):
            self.passed_by = weakref.ref(module), f"{type(module).__name__}, called at {lines.caller()}"
        return is_unit

    def unheld(self) -> str:
        """Return `passed_by` in words where no optimizer holds a parameter of it by now; else nothing."""
        if self.passed_by is None:
            return ""
        module, words = self.passed_by[0](), self.passed_by[1]
        return "" if module is None or any(map(self._is_held(), structure.parameters(module))) else words

    def _give_up_copies(self) -> None:
        """Let go of modules that optimizers hold nothing of: they step no copies, but parameters of another module."""
        self.by_copies = self.doubts_copies = False
        is_held = self._is_held()
        for wrapped in self._wrapped.copy():
            if not any(map(is_held, wrapped.parameters.values())):
                self._unwrap(wrapped)

    def _wrap(self, module: nn.Module) -> None:
        line = lines.caller()
        if self._awaits_method(module, line):
            return
        inner = self._compilations.inner(module)
        self._release_parts_of(inner)
        own_call = module._compiled_call_impl or module._call_impl
        name = type(inner).__name__  # FSDP gives it another class
        self._meet_alike(inner, name, line)
        target = self._converted(inner, line)
        arguments = self._compilations.arguments(module)
        if arguments is not None:
            target = self._unseen(self._compiled(target, own_call, arguments))
        target = self._mode.around(inner, target)
        redirect = Redirect(inner, target, self._watch, own_call)
        self._nest(redirect, inner)
        self._patches.replace(module, "_compiled_call_impl", redirect)
        self._note(module, inner, name, line)

    def _converted(self, module: nn.Module, line: str) -> Callable[..., Any]:
        """Return the mode's target for a module, one for all of its methods; ends the mode when there is none."""
        if any(wrapped.module is module for wrapped in self._wrapped):
            return self._targets[id(module)]
        name = type(module).__name__
        is_trained = self.is_trained()
        # Not those of the module itself: DistributedDataParallel knows them by two names and would leave them half out.
        untrained = frozenset(
            n for n, p in module.named_parameters() if n in self._unused and "." in n and not is_trained(p)
        )
        self.has_unused |= bool(self._unused - untrained)
        how = WrapOptions(
            has_unused=bool(self._unused - untrained),
            ignored=untrained,
            fsdp_wrap=self._fsdp_wrap,
            optimizers=tuple(self._optimizers()),
            wrapped=tuple(map(self._compilations.inner, self.modules)),
            warn=self._warn,
        )
        try:
            self._targets[id(module)] = self._mode.convert(module, how)
        except (ConversionError, RuntimeError, ValueError, TypeError, AssertionError) as error:
            self._fail(f"{name}, called at {line}, could not be converted: {error}")
        return self._targets[id(module)]

    def _note(self, module: nn.Module, inner: nn.Module, name: str, line: str) -> None:
        self._watch.phases.belongs_here()
        if any(wrapped.module is module for wrapped in self._wrapped):
            return  # by another of its methods
        parameters = dict(inner.named_parameters())
        not_frozen = frozenset(name for name, p in parameters.items() if p.requires_grad)
        unit = Wrapped(module=module, name=name, line=line, parameters=parameters, not_frozen=not_frozen)
        self._wrapped.append(unit)

    def _meet_alike(self, module: nn.Module, name: str, line: str) -> None:
        """Tell a module that is made anew around parameters from one that takes turns with others of its class.

        Of those that take turns the former is called again, before a third comes. A parallel mode takes neither.
        """
        own = {id(p) for p in structure.parameters(module)}
        alike = [
            id(wrapped.module)
            for wrapped in self._wrapped
            if wrapped.module is not module
            and wrapped.name == type(module).__name__
            and own == {id(p) for p in wrapped.parameters.values()}
        ]
        if alike and self._mode.distributed:
            self._fail(f"{ONE_MORE.format(name, line)}{MAKE_ONCE}")
        if not self._passed_over.keys().isdisjoint(alike):
            self._leave_made_anew()
        self._passed_over |= dict.fromkeys(alike, MADE_ANEW.format(name, line))

    def _leave_made_anew(self) -> None:
        """Say that of the modules of some class none stays."""
        said = next(iter(self._passed_over.values()), "")
        if said and not self.made_anew:
            self.made_anew = said
            self.warnings.append(f"{said}{UNSEEN}{MAKE_ONCE}")

    def _is_computed_again(self, module: nn.Module) -> bool:
        """Return whether a backward pass computes once more, around parameters of a wrapped module, as adjoints do.

        A model of its own may be called in one first with gradients on, as reentrant checkpointing calls it.
        """
        if not self._watch.phases.is_in(BACKWARD):
            return False
        known = set(map(id, self.reached()))
        return any(id(parameter) in known for parameter in structure.parameters(module))

    def _is_part(self, module: nn.Module) -> bool:
        """Return whether `module` lies inside a wrapped one that stands for it, as both precede a backward pass."""
        holders = self._holders(module)
        if not (holders and self._mode.wraps_parts):
            return bool(holders)
        is_open = any(holder is module or id(holder) in self._watch.open_passes for holder in holders)
        return is_open or id(module) in self._released

    def _holders(self, module: nn.Module) -> list[nn.Module]:
        """Return the wrapped modules of which one is a part, or is what the script compiled."""
        return [
            self._compilations.inner(wrapped.module)
            for wrapped in self._wrapped
            if wrapped.module is not module and any(part is module for part in structure.submodules(wrapped.module))
        ]

    def _release_parts_of(self, module: nn.Module) -> None:
        """Undo what is wrapped and precedes one backward pass with `module`, or two wrappers would reduce it."""
        for part in self._parts_of(module):
            inner = self._compilations.inner(part.module)
            if not self._mode.wraps_parts or id(inner) in self._watch.open_passes:
                self._unwrap(part)
                self._released.add(id(part.module))

    def _unwrap(self, wrapped: Wrapped) -> None:
        self._patches.restore(wrapped.module, "_compiled_call_impl")
        self._wrapped.remove(wrapped)

    def _parts_of(self, module: nn.Module) -> list[Wrapped]:
        parts = {id(part) for part in structure.submodules(module) if part is not module}
        return [wrapped for wrapped in self._wrapped if id(wrapped.module) in parts]

    def _nest(self, redirect: Redirect, module: nn.Module) -> None:
        """Let wrapped parts of each other know that they are."""
        redirect.holders = frozenset(map(id, self._holders(module)))
        for part in self._parts_of(module):
            call = part.module._compiled_call_impl
            if isinstance(call, Redirect):
                call.holders |= {id(module)}

    def _compiled(
        self, target: Callable[..., Any], own_call: Callable[..., Any], arguments: dict[str, Any]
    ) -> Callable[..., Any]:
        """Return the script's own compilation where the module stays as it is, else one around what the mode made."""
        if not self._mode.distributed:
            return own_call
        if arguments.get("fullgraph"):
            self.warnings.append("compiled without fullgraph=True: torch cannot trace a parallel module as one graph")
        return compiled_as(target, arguments)

    def _as_python(
        self, function: Function, python: Callable[..., Any], compiled: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Return a compiled function that runs as Python once it is known to call what is trained."""
        if self._mode.only_observes:
            return self._observed(function, compiled)
        inside, run = self._inside, _as_routed(python)

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            is_inside = getattr(inside, "unit", False) or not torch.is_grad_enabled()
            if is_inside or not self._is_to_run(function, python, (*args, *kwargs.values())):
                return compiled(*args, **kwargs)
            outer = getattr(inside, "functions", ())
            inside.functions = (*outer, function)
            try:
                return run(*args, **kwargs)
            finally:
                inside.functions = outer

        return around_compiled(call)

    def _observed(self, function: Function, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return a compiled function as it is, which tells of backward passes in it that no forward was seen before."""
        watch = self._watch

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._call is None or watch.open_passes:
                return compiled(*args, **kwargs)
            num_passes, forwards = watch.phases.num_passes, watch.forwards.copy()
            result = compiled(*args, **kwargs)
            if watch.phases.num_passes > num_passes and watch.forwards == forwards and not self.made_anew:
                self.made_anew = TRAINS_IN_GRAPH.format(function.name, function.line)
                self.warnings.append(f"{self.made_anew}{UNSEEN}")
            return result

        return around_compiled(call)

    def _is_to_run(self, function: Function, python: Callable[..., Any], values: Sequence[Any]) -> bool:
        """Return whether a compiled function is to run as Python: once to see whether it calls a model that it can."""
        is_known = function.calls_trained is not None or self._call is None
        if not is_known and (self._optimizers() or self.without_optimizer):
            if not any(map(self._is_unit, reached(python, values))):
                return False
            function.calls_trained = False
            return True
        return bool(function.calls_trained)

    def _called_by(self, functions: Sequence[Function], module: nn.Module, *, is_new: bool) -> None:
        """Compile a module that is not wrapped yet as the outermost function that calls it was to be."""
        unknown = [function for function in functions if not function.calls_trained]
        for function in unknown:
            function.calls_trained = True
            self.warnings.append(AS_PYTHON.format(function.name, function.line, type(module).__name__))
        if unknown and is_new and self._compilations.arguments(module) is None:
            module.compile(**functions[0].arguments)

    def past_graphs(self) -> str:
        """Return, as the end of a message, which compiled function may have called a model unseen; or nothing."""
        unseen = [function for function in self._compilations.functions if function.calls_trained is None]
        return IN_GRAPH.format(unseen[0].name, unseen[0].line) if unseen else ""

    def _unseen(self, target: Callable[..., Any]) -> Callable[..., Any]:
        """Return a target that runs with torch's own Module.__call__: dynamo would trace ours."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._call is None or not self._patches.restore(nn.Module, "__call__"):
                return target(*args, **kwargs)
            try:
                return target(*args, **kwargs)
            finally:
                self._patches.replace(nn.Module, "__call__", self._call)

        return call

    def is_compiled(self, module: nn.Module) -> bool:
        """Return whether the script compiled a module, or what it is called by, as a whole."""
        return any(
            self._compilations.arguments(whole) is not None and self._compilations.inner(whole) is module
            for whole in (module, *self.modules)
        )

    def _awaits_method(self, part: nn.Module, line: str) -> bool:
        """Meet the trap `model.loss(x)` -> `self.forward(x)`: the model is never called, only its parts are."""
        entries = running_methods(part, self.is_trained())
        if not entries or any(id(entry.module) in self._by_parts for entry in entries):
            return False
        if any(entry.calls_backward for entry in entries) and self._has_optimizers(part):
            return False  # no part of a model: the method is a trainer's, which holds several
        awaited = Awaited(part=part, line=line, entries=entries)
        if not self._mode.routes_methods:
            self._leave_to_parts(awaited)
            return False
        self.awaited.append(awaited)
        return True

    def _has_optimizers(self, part: nn.Module) -> bool:
        """Return whether optimizers train this part, and those that do train nothing else."""
        own = {id(p) for p in structure.parameters(part)}
        held = [{id(p) for group in each.param_groups for p in group["params"]} for each in self._optimizers()]
        return any(own & of_one for of_one in held) and all(of_one <= own or not own & of_one for of_one in held)

    def backward_ended(self) -> None:
        """A backward pass has run: the methods that had returned by then are what the models are called by."""
        awaited, self.awaited = self.awaited, []
        for each in awaited:
            entry = outermost_returned(each.entries)
            if entry is None:
                self._leave_to_parts(each)
            elif (id(entry.module), entry.method) not in self.routed:
                self.routed.add((id(entry.module), entry.method))
                self._wrap_by_method(entry)
                self._watch.tally.sees_another_model()

    def step_ended(self) -> None:
        """A step ended: from now on what was routed in it can be missed."""
        self.uncalled += self._routed_in_step
        self._routed_in_step.clear()

    def _wrap_by_method(self, entry: RunningMethod) -> None:
        """Route a method from its next call on; what this first backward left behind is cleared, alike on all ranks."""
        module, method = entry.module, getattr(entry.module, entry.method)
        class_name, told = type(module).__name__, str(entry)  # FSDP gives it another class
        gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        target = self._converted(module, entry.line)
        if self._mode.distributed:
            parameters = dict(module.named_parameters())
            for name, gradient in gradients.items():  # FSDP shards what is dense and takes nothing else
                like = parameters[name] if structure.is_dense(gradient) else gradient
                parameters[name].grad = torch.zeros_like(like)
        if entry.method != "forward":
            target = as_forward(module, method, target)
        own_call = self._mode.without_gradients(module, method)
        is_call = entry.method == CALL
        # What the mode made calls the module, and what is called then is to go on to its forward.
        target = self._mode.around(module, self._as_unit(target, told))
        redirect = Redirect(module, target, self._watch, own_call, method=None if is_call else method)
        self._routed_in_step.append(told)
        route_method(self._patches, module, entry.method, redirect)
        # A trainer may have taken the method before it began, as the function that computes its loss.
        replace_everywhere({id(taken): (taken, redirect) for taken in bound_methods(method) if taken is not method})
        self._note(module, module, class_name, entry.line)
        if isinstance(module._compiled_call_impl, Redirect):
            self.warnings.append(f"beside its own call, {class_name} is trained through {told}, which stands for one")
            return
        why = "the model's class is called in a way of its own" if is_call else "nobody calls the model itself"
        self.warnings.append(f"{why}: it is trained through {told}, which stands for its call")

    def _as_unit(self, target: Callable[..., Any], told: str) -> Callable[..., Any]:
        """Return a target inside of which no other unit is looked for; `told` is called from its first call on."""

        def call(*args: Any, **kwargs: Any) -> Any:
            for waiting in (self._routed_in_step, self.uncalled):
                if told in waiting:
                    waiting.remove(told)
            self._inside.unit = True
            try:
                return target(*args, **kwargs)
            finally:
                self._inside.unit = False

        return call

    def _leave_to_parts(self, awaited: Awaited) -> None:
        """Have each part of a model be a unit, which is right only where nothing is synchronised."""
        self._by_parts.update(id(entry.module) for entry in awaited.entries)
        text = (
            f"the forward is reached through {awaited.entries[0]} (its part {type(awaited.part).__name__} is called at "
            f"{awaited.line}), which runs the backward pass too; parallel wrappers act only on a call of the model "
            "itself. Call the model, and let its forward do what this does"
        )
        if self._mode.distributed:
            self._fail(f"gradients would not be synchronised: {text}")
        self._warn(text)

    def _warn(self, text: str) -> None:
        """Note what the reader must know; once is enough."""
        if text not in self.warnings:
            self.warnings.append(text)

    def is_evaluating(self) -> bool:
        """Return whether what the script trains is in eval mode: what was wrapped, and what it may train next.

        That is what an optimizer holds of which nothing is wrapped, as of a model that follows a trained one.
        """
        if any(wrapped.module.training for wrapped in self._wrapped):
            return False
        known = set(map(id, self.reached()))
        held = [[p for group in each.param_groups for p in group["params"]] for each in self._optimizers()]
        to_come = [parameters for parameters in held if known.isdisjoint(map(id, parameters))]
        if self._wrapped and (self._call is None or not to_come):
            return True
        return self._eval_mode.holds(parameter for parameters in to_come for parameter in parameters)

    @property
    def has_modules(self) -> bool:
        """Return whether a module is wrapped."""
        return bool(self._wrapped)

    @property
    def modules(self) -> list[nn.Module]:
        """Return the wrapped modules, in order."""
        return [wrapped.module for wrapped in self._wrapped]

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of all wrapped modules, each once."""
        return _each_once(p for wrapped in self._wrapped for p in wrapped.parameters.values())

    def reached(self) -> list[nn.Parameter]:
        """Return the parameters of all wrapped modules, and those that they show in their place, gathered by FSDP."""
        return _each_once((*self.parameters(), *(p for module in self.modules for p in module.parameters())))

    def trained(self) -> list[nn.Parameter]:
        """Return the parameters of all wrapped modules that are trained, at least in turn, each once."""
        return _each_once(p for wrapped in self._wrapped for p in wrapped.trained())

    def unwrapped(self) -> tuple[str, ...]:
        """Return trained parameters that have a gradient but belong to no wrapped module, by shape."""
        return tuple(
            f"a parameter of shape {tuple(p.shape)} in {type(optimizer).__name__}" for optimizer, p in self._unwrapped()
        )

    def made_late(self) -> str:
        """Return one of them that a wrapped module was given since, by name; else nothing."""
        late = {id(p) for _, p in self._unwrapped()}
        named = ((one.name, *entry) for one in self._wrapped for entry in one.module.named_parameters())
        return next((f"{name} of {module}" for module, name, p in named if id(p) in late), "")

    def _unwrapped(self) -> list[tuple[Optimizer, nn.Parameter]]:
        wrapped = {id(p) for p in self.parameters()}
        return [
            (optimizer, p)
            for optimizer in self._optimizers()
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None and id(p) not in wrapped
        ]

    def num_left_behind(self) -> int:
        """Return how many modules are wrapped of which no optimizer of the script's holds a parameter any more."""
        is_trained = self.is_trained()
        return sum(not any(map(is_trained, wrapped.parameters.values())) for wrapped in self._wrapped)

    def trains_no_module(self) -> str:
        """Return in words who holds what is trained, where all of it are tensors of no module; else nothing."""
        optimizers = self._optimizers()
        held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        if held:
            return "" if any(isinstance(p, nn.Parameter) for p in held) else f"{type(optimizers[0]).__name__} holds"
        is_there = any(issubclass(type(thing), nn.Parameter) for thing in gc.get_objects())
        return "" if is_there else "the script trains"

    def records(self, touched: Collection[int] = ()) -> tuple[WrappedModule, ...]:
        """Return what was wrapped; `touched` has the ids of the parameters that got a gradient in a step."""
        elements = structure.sharded_elements(part for module in self.modules for part in module.modules())
        return tuple(
            WrappedModule(
                name=wrapped.name,
                line=wrapped.line,
                num_parameters=sum(elements.get(id(p), p.numel()) for p in wrapped.parameters.values()),
                trainable_bytes=sum(elements.get(id(p), p.numel()) * p.element_size() for p in wrapped.trained()),
                unused=self._unused_in(wrapped, touched),
            )
            for wrapped in self._wrapped
        )

    def _unused_in(self, wrapped: Wrapped, touched: Collection[int]) -> tuple[str, ...]:
        """Return the parameters of a unit that training through it gives no gradient; none where nothing tells.

        Of one that was not called in the step it is told from the gradients that there are, of whatever step: none
        where `zero_grad` has taken them away, and zeros where it leaves them.
        """
        trained = {name: p for name, p in wrapped.parameters.items() if p.requires_grad}
        reached = {id(p) for p in trained.values() if id(p) in touched}
        if not (reached and id(self._compilations.inner(wrapped.module)) in self._watch.forwards):
            trained = {name: p for name, p in trained.items() if id(p) not in reached}
            reached = {id(p) for p in trained.values() if p.grad is not None}
        return tuple(name for name, p in trained.items() if id(p) not in reached) if reached else ()


def _each_once(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Return parameters, of which modules around one model have the same ones."""
    return list({id(p): p for p in parameters}.values())


def _as_routed(python: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is what it is; of a method that meanwhile stands for its model's call, the call's."""
    if not inspect.ismethod(python):
        return python
    owner, name = getattr(python.__self__, "__dict__", {}), python.__name__

    def call(*args: Any, **kwargs: Any) -> Any:
        routed = owner.get(name)
        return (routed if isinstance(routed, Redirect) else python)(*args, **kwargs)

    return call
