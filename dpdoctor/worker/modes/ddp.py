"""ddp: torch's DistributedDataParallel, one process per device."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dpdoctor import units
from dpdoctor.records import PARAMETERS_EQUAL, Check
from dpdoctor.worker.base.mode import Evidence, Mode, Passes, WrapOptions

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel


REPLACED = (
    ": between backward pass and update the script, or its optimizer, puts other gradients (p.grad = ...) in the place "
    "of those that DistributedDataParallel averaged, and they differ between ranks"
)
UPDATED_APART = (
    "parameters differ between ranks, although as many bytes were all-reduced as there are gradients: ranks update "
    "them by something that each draws itself, such as a learning rate, noise or a mask. Let the script seed what "
    "draws it"
)
SHARED = (
    "{} and {} have parameters in common, {} first: where one backward pass goes through both, DistributedDataParallel "
    "reduces the gradients of these twice. Put both into one module, and call that one alone"
)
RUNS_EARLY = (
    "{}, which the script registered on the parameter {} ({}), acts on each rank's own gradient, before "
    "DistributedDataParallel averages them: clamping these is another thing than clamping that of the whole batch, as "
    "on one device. Change .grad after backward() for that"
)
IS_OVERWRITTEN = (
    "what {}, which the script registered on the parameter {} ({}) after the model's first training forward, changes "
    "in .grad is lost: DistributedDataParallel has taken each rank's own gradient by then, and writes the average over "
    "it. Change .grad after backward()"
)
SHARES_BUFFERS = "has buffers in common with {}, which "
UNSYNCHRONISED = "gradients were not synchronised"
THAWED = (
    ": DistributedDataParallel reduces the gradients of what needs one when it wraps the model, and {}, which was "
    "frozen then, is trained since. In a DDP script of your own, wrap the model again after requires_grad_(True); "
    "here, profile a script that begins with it"
)
CALLED_AGAIN = (
    "{}, called at {}, {}was called before without a backward pass in between: buffers are broadcast in the first of "
    "such calls alone. DistributedDataParallel broadcasts them in each, and this torch raises where the backward pass "
    "needs what it then changes in place, as that of BatchNorm on a GPU does. In a DDP script of your own, give "
    "broadcast_buffers=False, or call the model once with all batches"
)
RETURNS_NONE = (
    "DistributedDataParallel looks for what is unused, as some parameters are, in the tensors that a model returns, by "
    "itself or in tuples, lists, dicts and dataclasses; what {} returns, of class {}, has none that needs a gradient. "
    "It took all parameters for unused, and the backward pass at {} has gradients for them. Return the loss, or the "
    "tensors of which it is made, or freeze what is unused (requires_grad_(False))"
)
# Sparse gradients, as of nn.Embedding(sparse=True), are reduced apart, and counted with the whole parameter's bytes.
_REDUCING = ("all_reduce", "sparse_all_reduce")
# What the reducer says when a gradient comes twice, or not at all, after one forward, or before it has returned.
_LOST_COUNT = re.compile(
    r"mark a variable ready only once|finished reduction in the prior iteration|must NOT be called during autograd"
)
_WITHOUT = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")


class DDP(Mode):
    """The public DistributedDataParallel with its defaults, as an author would write it."""

    distributed = communicates = True
    needs_unused = True
    replicates = True
    routes_methods = wraps_parts = True

    def __init__(self) -> None:
        self.wrappers: list[DistributedDataParallel] = []
        self._hooks: list[Callable[..., Any]] = []
        # Parameters that a wrapper passes over, by name.
        self._frozen: list[tuple[str, nn.Parameter]] = []
        self._broadcasts: dict[int, _Broadcasts] = {}
        # Modules in which unused parameters are looked for, by id, and what the last forward of each returned without a
        # tensor that needs a gradient: both by their classes.
        self._return_none: dict[int, tuple[str, str]] = {}

    def convert(self, module: nn.Module, how: WrapOptions) -> Callable[..., Any]:
        """Return the wrapper; its constructor gives all ranks rank 0's parameters and buffers."""
        from torch.autograd.grad_mode import _unsafe_preserve_version_counter
        from torch.nn.parallel import DistributedDataParallel

        for name, buffer in module.named_buffers():
            if _is_laid_out_oddly(buffer):
                buffer.data = buffer.new_empty(buffer.shape).copy_(buffer)
                how.warn(
                    f"the buffer {name} was laid out anew: DistributedDataParallel cannot broadcast a buffer that is "
                    "a transposed view. In a DDP script of your own, register a copy of it that has "
                    "memory_format=torch.contiguous_format"
                )
        if how.ignored:
            # Not public, but the only way, and what torch's own tutorials use.
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, sorted(how.ignored))
            left_out = units.count(len(how.ignored), "parameter")
            how.warn(f"{left_out} left out of the wrapper: nothing trains {min(how.ignored)} and the like")
        self._warn = how.warn
        self._tell_hooks(module, {})
        _tell_shared(module, how)
        # Not public. Parameters that were wrapped before are alike on all ranks: to broadcast them changes nothing that
        # a graph holds. Buffers that it holds newer torch broadcasts as well, before each forward.
        wrapped = [wrapper.module for wrapper in self.wrappers]
        held = tuple(tensor for before in wrapped for tensor in (*before.parameters(), *before.buffers()))
        with _unsafe_preserve_version_counter(held):
            wrapper = DistributedDataParallel(module, find_unused_parameters=how.has_unused)
            changes = _changes_what_is_saved(wrapper)
        self.wrappers.append(wrapper)
        self._frozen += ((name, p) for name, p in module.named_parameters() if not p.requires_grad)
        if changes:
            others = self._broadcasts.values()
            self._broadcasts[id(module)] = _Broadcasts(wrapper, self.passes, how.warn, others)
        return wrapper

    def _tell_hooks(self, module: nn.Module, words: Mapping[str, str]) -> None:
        """Say of the first hook that is not known yet what becomes of it, in words by what it was registered by."""
        from dpdoctor.worker.modes import _hooks

        new = [
            hook
            for hook in _hooks.registered(module)
            if not hook.only_logs
            and _is_reduced(module, hook.parameter)
            and all(hook.function is not known for known in self._hooks)
        ]
        self._hooks += [hook.function for hook in new]
        for hook in new[:1]:
            self._warn(words.get(hook.by, RUNS_EARLY).format(_hooks.named(hook.function), hook.parameter, hook.by))

    def around(self, module: nn.Module, target: Callable[..., Any]) -> Callable[..., Any]:
        """Return the target, before which it is settled whether buffers are broadcast: outside of what is compiled.

        After it is seen whether the wrapper finds what it looks for.
        """
        broadcasts = self._broadcasts.get(id(module))
        finds_unused = any(w.find_unused_parameters for w in self.wrappers if w.module is module)
        if broadcasts is None and not finds_unused:
            return target

        def call(*args: Any, **kwargs: Any) -> Any:
            if broadcasts is not None:
                broadcasts.before_forward()
            output = target(*args, **kwargs)
            if finds_unused:
                self._look_into(output, module)
            return output

        return call

    def _look_into(self, output: Any, module: nn.Module) -> None:
        """Note what a module returned last where the wrapper finds no tensor in it."""
        from torch.nn.parallel.distributed import _find_tensors  # not public, but what the wrapper itself looks with

        self._return_none.pop(id(module), None)
        if not any(tensor.requires_grad for tensor in _find_tensors(output)):
            self._return_none[id(module)] = type(module).__name__, type(output).__name__

    def explain(self, error: BaseException, line: str) -> str | None:
        """Return which backward passes DistributedDataParallel cannot follow, where it says that it cannot."""
        why = self.why_apart()
        if why and _LOST_COUNT.search(str(error)):
            return f"{UNSYNCHRONISED}{why} (raised at {line})"
        if self._return_none and _LOST_COUNT.search(str(error)):
            return RETURNS_NONE.format(*next(iter(self._return_none.values())), line)
        names = self._without_gradient(error)
        if not names:
            return None
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return (
            "DistributedDataParallel waits for a gradient of every parameter in each backward pass, and the one before "
            f"{line} gave none to {names[0]}{others}: what the model computes with them is no part of that loss. Make "
            "it a module of its own, or add 0 times its sum to the loss"
        )

    def _without_gradient(self, error: BaseException) -> list[str]:
        """Return the parameters for which a wrapper says, in this error, that it waited in vain."""
        told = _WITHOUT.search(str(error))
        called = {id(frame.f_locals.get("self")) for frame, _ in traceback.walk_tb(error.__traceback__)}
        wrapper = next((wrapper for wrapper in self.wrappers if id(wrapper) in called), None)
        if told is None or wrapper is None:
            return []
        awaited = [
            name
            for name, parameter in wrapper.module.named_parameters()
            if parameter.requires_grad and name not in wrapper.parameters_to_ignore
        ]
        return [awaited[int(index)] for index in told[1].split()]

    def checks(self, evidence: Evidence) -> list[Check]:
        """Return whether the ranks hold one model and as many bytes were reduced as there are gradients.

        Both may hold where optimizers step on gradients before: ranks with the same samples stay alike without it.
        """
        from dpdoctor.worker.modes import _hooks

        for wrapper in self.wrappers:
            self._tell_hooks(wrapper.module, {_hooks.AFTER_NODE: IS_OVERWRITTEN})
        why, early = self.why_apart(), self._early()
        reduced = _gradients_reduced(evidence, why, is_late=bool(early))
        return [*super().checks(evidence), _parameters_equal(evidence, why, is_reduced=bool(reduced.ok)), reduced]

    def why_apart(self) -> str:
        """Return which backward passes are not reduced, or parameters, as the end of a sentence; empty: all are."""
        repeated, early = self.passes.repeated, self._early()
        if early:
            return (
                f": optimizer.step at {early} runs inside the backward pass, before DistributedDataParallel averages "
                "the gradients. Step after backward()"
            )
        thawed = next((name for name, parameter in self._frozen if parameter.requires_grad), "")
        if thawed:
            return THAWED.format(thawed)
        if self.passes.by_grad or not repeated:
            return self.passes.past_hooks() or self.passes.before_return() or self.passes.past_call()
        return (
            f": the backward pass at {repeated} goes through a forward that another one went through before, and "
            "DistributedDataParallel reduces in the first alone. Call the model once for each, or add the losses up"
        )

    def _early(self) -> str:
        """Return the line at which an optimizer steps before gradients are averaged; empty: none does."""
        parameters = (parameter for wrapper in self.wrappers for parameter in wrapper.module.parameters())
        return "" if any(map(_steps_late, parameters)) else self.passes.with_step


class _Broadcasts:
    """Has a wrapper broadcast its buffers once before each backward pass, however often it is called before it.

    Or another one that has some of them. None follows most calls in eval mode, which are evaluations without no_grad:
    they do not count as a first one.
    """

    def __init__(
        self,
        wrapper: DistributedDataParallel,
        passes: Passes,
        warn: Callable[[str], None],
        others: Iterable[_Broadcasts],
    ) -> None:
        self._wrapper, self._passes, self._warn = wrapper, passes, warn
        self._ended_before: int | None = None
        self._is_told = False
        own = set(map(id, wrapper.module.buffers()))
        self._sharing = [other for other in others if not own.isdisjoint(map(id, other._wrapper.module.buffers()))]
        inside = {id(part) for part in wrapper.module.modules()}
        # What is inside may be called alone in later steps as well, which nobody sees: its wrapper is gone.
        self._inside = next((o for o in self._sharing if o._is_open() and id(o._wrapper.module) in inside), None)
        for other in self._sharing:
            other._sharing.append(self)

    def _is_open(self) -> bool:
        """Return whether no backward pass has followed its last training forward."""
        return self._ended_before == self._passes.num_ended

    def before_forward(self) -> None:
        """A forward of the wrapper is about to begin; say at the first that broadcasts nothing why."""
        module = self._wrapper.module
        called = self._inside or next((each for each in (self, *self._sharing) if each._is_open()), None)
        self._wrapper.require_forward_param_sync = called is None  # each forward of its own sets it
        if module.training:
            self._ended_before = self._passes.num_ended
        if called is not None and not self._is_told:
            from dpdoctor.worker.base import lines

            self._is_told = True
            shares = "" if called is self else SHARES_BUFFERS.format(type(called._wrapper.module).__name__)
            self._warn(CALLED_AGAIN.format(type(module).__name__, lines.caller(), shares))


def _tell_shared(module: nn.Module, how: WrapOptions) -> None:
    """Say that a module trains what one that was wrapped before trains."""
    holders = {id(p): other for other in how.wrapped for p in other.parameters() if p.requires_grad}
    shared = [name for name, parameter in module.named_parameters() if id(parameter) in holders]
    if shared:
        holder = holders[id(module.get_parameter(shared[0]))]
        how.warn(SHARED.format(type(holder).__name__, type(module).__name__, shared[0]))


def _is_reduced(module: nn.Module, name: str) -> bool:
    """Return whether the wrapper averages a parameter's gradient before anything steps on it."""
    parameter, ignored = module.get_parameter(name), getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    return parameter.requires_grad and name not in ignored and not _steps_late(parameter)


def _steps_late(parameter: nn.Parameter) -> bool:
    """Return whether torch's `_apply_optimizer_in_backward` steps it, which the wrapper puts off past its average."""
    return hasattr(parameter, "_in_backward_optimizers")


def _changes_what_is_saved(wrapper: DistributedDataParallel) -> bool:
    """Return whether a broadcast of buffers is a change of what autograd has saved; to newer torch it is none."""
    before = [buffer._version for buffer in wrapper.modules_buffers]
    if before:
        wrapper._sync_buffers()
    return before != [buffer._version for buffer in wrapper.modules_buffers]


def _is_laid_out_oddly(buffer: torch.Tensor) -> bool:
    """Return whether a buffer's strides are not those that its shape would get, though its values lie in that order.

    torch's coalesced broadcast flattens such a buffer without copying it and then refuses to write it onto itself.
    """
    return buffer.is_contiguous() and buffer.stride() != buffer.new_empty(buffer.shape, device="meta").stride()


def _parameters_equal(evidence: Evidence, why: str, *, is_reduced: bool) -> Check:
    name = PARAMETERS_EQUAL
    if len(set(evidence.checksums)) > 1:
        if is_reduced and not (why or evidence.replaced):
            return Check(name=name, ok=False, text=UPDATED_APART)
        seen = REPLACED if evidence.replaced else ": parameters differ between ranks"
        return Check(name=name, ok=False, text=f"{UNSYNCHRONISED}{why or seen}")
    if not evidence.moved:
        return Check(name=name, ok=None, text="parameters did not move yet, so that they are equal proves nothing")
    ranks = units.count(len(evidence.checksums), "rank")
    return Check(name=name, ok=True, text=f"parameters are equal, bit for bit, on {ranks} after they moved")


def _gradients_reduced(evidence: Evidence, why: str, *, is_late: bool) -> Check:
    name = "gradients reduced"
    found = evidence.counters.collectives
    num_bytes = sum(found[kind].num_bytes for kind in _REDUCING if kind in found)
    text = f"{units.size(num_bytes)} all-reduced in a step that made {units.size(evidence.gradient_bytes)} of gradients"
    if is_late or num_bytes < evidence.gradient_bytes:
        return Check(name=name, ok=False, text=f"{UNSYNCHRONISED}{why or f': {text}'}")
    return Check(name=name, ok=True, text=text)


MODE = DDP()
