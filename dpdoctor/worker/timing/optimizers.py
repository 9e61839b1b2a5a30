"""What a step is: the outermost `step` of the reference among the script's optimizers, whatever it does with it."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from dpdoctor.worker.base import lines
from dpdoctor.worker.base.patches import Patches, around_compiled
from dpdoctor.worker.timing.phases import BACKWARD, ELSEWHERE, OPTIMIZER, OUTERMOST, PhaseClock

# Stands for the optimizer of a script that has built none. A step of one that it builds later takes its place at once,
# as no backward pass counts as a step from then on.
NO_OPTIMIZER = -1
# So many steps of others without one of the reference mean that the script has moved on (a pre-fit has ended).
SILENT_AFTER = 200
# Of an optimizer that was built since the reference's last step fewer are enough, where the reference is never silent:
# a fold of a cross validation has its own. Inner loops with an optimizer for each batch make it silent in every step.
REPLACED_AFTER = 8
TIMES_SILENT = 4
# Optimizers that were all built ahead may train in turn, as those of a cross validation do: one that took so many steps
# in a row had its turn, and as many of another in a row are the next one's. Fewer would give no turn back.
STEPS_OF_A_TURN = 16
# So many steps that change nothing, each after a backward pass of its own, mean that the script trains nothing this
# way. Fewer may be a warm start, or one model of several that waits for its turn.
MOST_IDLE = 8


class StepCounter:
    """Follows nested and interleaved optimizer steps.

    Optimizers are known by their order of creation, alike on every rank of one script, so that all ranks agree on
    the reference without talking. A GradScaler's step encloses its optimizer's and counts even when it skips it.

    Attributes:
        num_passes: how many backward passes ran inside of the step that began last, as its closure was evaluated.
        under_way: the steps that have begun and not ended, the outermost first; while there is one, a closure runs.
        num_replaced: how often an optimizer that the script built later took the place of the reference, one whose turn
            came, or an older one that outlives those which are built for each batch. `replaced_after`: the steps of the
            one before it.
    """

    def __init__(self) -> None:
        self.under_way: list[tuple[int, bool]] = []
        self._counts: Counter[int] = Counter()
        # The steps that have ended; of those the last of each optimizer, and the last of any newcomer.
        self._num_steps = self._newcomer_at = 0
        self._last_step: dict[int, int] = {}
        self._taken: Counter[int | None] = Counter()
        self._others = 0
        # Who stepped last and how often in a row; how many steps in a row the reference took when it last stepped.
        self._in_a_row: tuple[int | None, int] = (None, 0)
        # Steps that the reference went on to take since, and that are in no counter yet.
        self._more = 0
        self._turn = 0
        self._inside = 0
        self._built = self._built_before = self._longest_silence = 0
        self.num_replaced = self.replaced_after = self.num_passes = 0
        self.reference: int | None = None

    def built(self, optimizer: int) -> None:
        """The script built an optimizer, or a copy of one."""
        self._built = max(self._built, optimizer + 1)

    def enter(self, optimizer: int, *, scaled: bool = False) -> None:
        """A step of `optimizer` begins; `scaled`: it is GradScaler.step that begins.

        Entering the same one again means that an exception ended it before: it is forgotten.
        """
        token = (optimizer, scaled)
        if token in self.under_way:
            del self.under_way[self.under_way.index(token) :]
        self.under_way.append(token)
        self.num_passes = 0

    def backward_ended(self) -> None:
        """A backward pass ended; it counts where it ran inside of a step."""
        self.num_passes += bool(self.under_way)

    def leave(self, optimizer: int, *, scaled: bool = False) -> bool:
        """A step ends. Return True when it is one of the reference's, and the outermost."""
        token, under_way = (optimizer, scaled), self.under_way
        if token not in under_way:
            return False  # a subclass's step, counted when the base class's step that it called ended
        if len(under_way) == 1 and self._goes_on(optimizer):
            under_way.clear()
            self._more += 1
            return True
        self._count_more()
        while under_way.pop() != token:
            pass  # an exception ended it
        if under_way:
            self._inside += 1
            if self._inside >= SILENT_AFTER:
                under_way.clear()  # an exception ended the outer one, and nobody tried it again
            return False
        self._inside = 0
        self._num_steps += 1
        self._taken[optimizer] += 1
        before, in_a_row = self._in_a_row
        self._in_a_row = (optimizer, in_a_row + 1 if before == optimizer else 1)
        if optimizer != self.reference and not self._takes_over(optimizer):
            return False
        self._last_step[optimizer] = self._num_steps
        self._turn = self._in_a_row[1]
        self._counts[optimizer] += 1
        if self._others:
            self._longest_silence = max(self._longest_silence, self._others)
            self._others = 0
        self._built_before = self._built
        return True

    def _goes_on(self, optimizer: int) -> bool:
        """Return whether a step is one more of the reference's, which took the last one, and nothing else happened."""
        is_quiet = not self._inside and self._built_before == self._built
        return is_quiet and optimizer == self.reference == self._in_a_row[0]

    def _count_more(self) -> None:
        if not self._more:
            return
        (optimizer, in_a_row), more, self._more = self._in_a_row, self._more, 0
        assert optimizer is not None
        self._in_a_row = (optimizer, in_a_row + more)
        self._num_steps += more
        self._taken[optimizer] += more
        self._counts[optimizer] += more
        self._last_step[optimizer] = self._num_steps
        self._turn = in_a_row + more

    def _takes_over(self, optimizer: int) -> bool:
        """Note a step of another optimizer than the reference; return whether it is the reference from this step on."""
        if self.reference is None or self.reference == NO_OPTIMIZER:
            self.num_replaced += self.reference is not None
            self._replace(optimizer)
            return True
        is_new = optimizer >= self._built_before
        if self._outlives(optimizer, self.reference, is_new=is_new):
            self._replace(optimizer)
            self.num_replaced += 1
            return True
        self._others += 1
        patience = REPLACED_AFTER + TIMES_SILENT * self._longest_silence
        has_turn = min(self._turn, self._in_a_row[1]) >= STEPS_OF_A_TURN
        if has_turn or self._others >= (min(patience, SILENT_AFTER) if is_new else SILENT_AFTER):
            self._replace(optimizer)
            self._others = self._longest_silence = 0
            self._built_before = self._built
            self.num_replaced += is_new or has_turn
        return has_turn  # else no step would count where turns have no more of them

    def _outlives(self, optimizer: int, reference: int, *, is_new: bool) -> bool:
        """Note a step; return whether its optimizer outlives the reference.

        It is older, and steps for the second time since the reference did, with steps of a newcomer in between.
        """
        before, self._last_step[optimizer] = self._last_step.get(optimizer, 0), self._num_steps
        if is_new:
            self._newcomer_at = self._num_steps
            return False
        if optimizer < reference:
            self._longest_silence = max(self._longest_silence, self._num_steps - 1 - before)
            if self._num_steps - 1 - self._others < before < self._newcomer_at:
                return True
        self._counts[optimizer] += 1  # those of newcomers would be held against fewer of the reference
        return False

    def _replace(self, optimizer: int) -> None:
        """Make another optimizer the reference."""
        self.replaced_after = self._taken[self.reference]
        self.reference = optimizer
        self._counts = Counter({optimizer: self._counts[optimizer]})  # the others have had their time

    def elect(self) -> bool:
        """Make the optimizer with most steps since the last election the reference; return whether it changed."""
        self._count_more()
        counts, self._counts = self._counts, Counter()
        if not counts or self.reference is None:
            return False
        best = max(counts, key=lambda optimizer: (counts[optimizer], optimizer == self.reference))
        changed = best != self.reference
        self.reference = best
        return changed


@dataclass(slots=True, eq=False)
class _Known:
    """An optimizer: its place in the order of creation, the depths of the phases of its steps that have begun, and the
    line at which it was built; empty: nobody saw that.
    """

    index: int
    built: str = ""
    depths: list[int] = field(default_factory=list)


class Optimizers:
    """The script's torch optimizers in the order of their creation, and the ends of their steps.

    `on_step` is called when a step of the reference optimizer has ended, and the backward pass in which it was taken,
    if it was in one; without any torch optimizer, when a backward pass has. `on_any_step` is called before it, and for
    every optimizer's outermost step, and once for all that were taken in one backward pass, which are one step. `check`
    is called when a step begins, `on_built` when an optimizer or a copy of one was built, `on_idle` with the classes
    of those that stepped when backward passes have left no gradient to any optimizer in MOST_IDLE steps. So many
    backward passes as `patience` are no steps while no optimizer was built: one may be built after them.

    Attributes:
        any_seen: whether the script ever built a torch optimizer.
        in_backward: who took a step in the backward pass that is open or has just ended.
        are_compiled: whether a compiled function took a step.
        in_backward_at: the line of the first step of parameters that was taken in a backward pass; empty: none was.
    """

    def __init__(
        self,
        counter: StepCounter,
        phases: PhaseClock,
        check: Callable[[], None],
        on_step: Callable[[], None],
        on_any_step: Callable[[], None],
        *,
        on_built: Callable[[], None] | None = None,
        on_idle: Callable[[tuple[str, ...]], None] | None = None,
        patience: int = 0,
    ):
        self._counter = counter
        self._phases = phases
        self._check = check
        self._on_step = on_step
        self._on_any_step = on_any_step
        self._on_built = on_built
        self._on_idle = on_idle
        self._patience = patience
        self._created: list[weakref.ref[Optimizer]] = []
        # By id, of those that live.
        self._known: dict[int, _Known] = {}
        self._stepped: dict[int, str] = {}
        # Who took a step in the compiled function that runs.
        self._in_graph: list[Optimizer] = []
        # Whether a step was taken that may have trained something.
        self._has_trained = False
        # Who took steps that changed nothing after a backward pass, and how many passes had begun by the last of them.
        self._idle: list[str] = []
        self._passes_by_idle = 0
        # How many passes had begun by the last one that was a step, as no optimizer was built.
        self._stepped_by_pass = 0
        # torch's hooks before and after a step.
        self._hooks: tuple[RemovableHandle, ...] = ()
        # Whether a step may be another thing than a call of the optimizer's, as with a scaler or in a graph.
        self._is_wrapped = False
        self.any_seen = self.are_compiled = False
        self.in_backward: list[int] = []
        self.in_backward_at = ""

    def watch(self, patches: Patches) -> None:
        """See every optimizer built and every step taken from now on."""
        build, restore = vars(Optimizer)["__init__"], vars(Optimizer)["__setstate__"]
        scaled_step, compile_any = vars(GradScaler)["step"], torch.compile

        @functools.wraps(build)
        def register(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            build(optimizer, *args, **kwargs)
            self.built(optimizer)

        @functools.wraps(restore)
        def register_copy(optimizer: Optimizer, state: dict[str, Any]) -> None:
            restore(optimizer, state)
            self.built(optimizer)

        @functools.wraps(scaled_step)
        def step(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            self._wrapped()
            self._begin(optimizer, scaled=True)
            result = scaled_step(scaler, optimizer, *args, **kwargs)
            self._end(optimizer, scaled=True)
            return result

        @functools.wraps(compile_any)
        def compile_and_see(model: Any = None, **arguments: Any) -> Any:
            self._wrapped()
            compiled = compile_any(model, **arguments)
            return self._seen(compiled) if inspect.isroutine(model) else compiled

        patches.replace(Optimizer, "__init__", register)
        patches.replace(Optimizer, "__setstate__", register_copy)
        patches.replace(GradScaler, "step", step)
        patches.replace(torch, "compile", compile_and_see)
        before = register_optimizer_step_pre_hook(self._begin)
        after = register_optimizer_step_post_hook(self._end)
        self._hooks = before, after
        patches.add("torch.optim.optimizer step pre hook", before.remove)
        patches.add("torch.optim.optimizer step post hook", after.remove)

    def only_ends(self, on_end: Callable[..., None]) -> None:
        """Have torch itself call `on_end` after each step, with nothing around it, while only one optimizer's count.

        Nothing happens where others may; once they may, steps are followed again, as after `follow`.
        """
        if self.is_sole():
            self._hook(_nothing, on_end)

    def follow(self) -> None:
        """Follow each step from its beginning to its end."""
        self._hook(self._begin, self._end)

    def _hook(self, *hooks: Callable[..., None]) -> None:
        """Put functions in the place of those that torch calls, which it may be doing at this moment."""
        for handle, hook in zip(self._hooks, hooks, strict=True):
            of_torch = handle.hooks_dict_ref()
            if of_torch is not None and handle.id in of_torch:
                of_torch[handle.id] = hook

    def is_sole(self) -> bool:
        """Return whether every step of an optimizer's, as torch's hooks see it, is one of the reference's."""
        alive = self.alive()
        if len(self._created) != 1 or not alive or self._is_wrapped or self.in_backward_at or self.in_backward:
            return False
        # One that calls its base class's step makes torch call its hooks twice.
        own = [kind for kind in type(alive[0]).__mro__ if kind is not Optimizer and "step" in vars(kind)]
        return len(own) == 1 and self._has_trained and self._counter.reference == 0 and not self._counter.under_way

    def _wrapped(self) -> None:
        """A step may be another thing than a call of the optimizer's from now on."""
        self._is_wrapped = True
        self.follow()

    def built(self, optimizer: Optimizer) -> None:
        """The script has built an optimizer, or a copy of one; nothing happens where it is known."""
        if id(optimizer) not in self._known:
            self._meet(optimizer, lines.caller())

    def alive(self) -> list[Optimizer]:
        """Return the optimizers that the script still holds."""
        return [optimizer for ref in self._created if (optimizer := ref()) is not None]

    def names(self) -> tuple[str, ...]:
        """Return the classes of the optimizers that the script holds; once it let go of all, of those that took steps.

        A function that trains and returned holds nothing any more.
        """
        return tuple(type(optimizer).__name__ for optimizer in self.alive()) or tuple(self._stepped.values())

    def built_at(self) -> tuple[str, ...]:
        """Return the line at which each of those that the script holds was built; empty: nobody saw it."""
        known = (self._known.get(id(optimizer)) for optimizer in self.alive())
        return tuple(each.built if each is not None else "" for each in known)

    def _meet(self, optimizer: Optimizer, line: str = "") -> _Known:
        """Note an optimizer that is not known yet: it is the last in the order of creation."""
        number, known = id(optimizer), _Known(len(self._created), line)
        self._known[number] = known
        # Another one may have its id once it is gone.
        self._created.append(weakref.ref(optimizer, lambda _: self._known.pop(number, None)))
        self.any_seen = True
        if self._created[1:]:
            self.follow()
        self._counter.built(known.index)
        if self._on_built is not None:
            self._on_built()
        return known

    def _seen(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return a compiled function after each call of which the steps that were taken in it are counted.

        Hooks would be traced into its graph: there they only tell who took a step, once it has run. Its time is the
        optimizer's once a call took steps and ran no backward pass: one that runs it may hold the forward as well.
        """
        only_steps = False

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal only_steps
            if is_compiling():  # it is called by another one, and in that one's graph
                return compiled(*args, **kwargs)
            num_passes = self._phases.num_passes
            depth = self._phases.push(OPTIMIZER) if only_steps else ELSEWHERE
            try:
                result = compiled(*args, **kwargs)
            finally:
                self._phases.pop(depth)
                taken, self._in_graph[:] = self._in_graph[:], []
            self.are_compiled |= bool(taken)
            only_steps = bool(taken) and 0 < num_passes == self._phases.num_passes
            for optimizer in taken:
                self._has_trained = True  # the gradients may be gone again
                self._begin(optimizer)
                self._end(optimizer)
            return result

        return around_compiled(call)

    def _begin(
        self,
        optimizer: Optimizer,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        scaled: bool = False,
    ) -> None:
        if is_dynamo_compiling():
            return
        self._check()
        known = self._known.get(id(optimizer)) or self._meet(optimizer)
        if not self._has_trained:
            self._has_trained = not _does_nothing(optimizer, (*args[1:], *(kwargs or {}).values()))
            if not self._has_trained and self._phases.num_passes > self._passes_by_idle:
                self._idles(optimizer)
        depth = self._phases.push(OPTIMIZER)
        known.depths.append(depth)
        if depth == OUTERMOST or not self._phases.is_in(BACKWARD):
            if self._has_trained:
                self._counter.enter(known.index, scaled=scaled)
        elif not self.in_backward_at and _holds_parameters(optimizer):
            self.in_backward_at = lines.caller()
        if known.index not in self._stepped:
            self._stepped[known.index] = type(optimizer).__name__

    def _idles(self, optimizer: Optimizer) -> None:
        """A step is to change nothing, although a backward pass came before it, and nothing was trained yet."""
        self._idle.append(type(optimizer).__name__)
        self._passes_by_idle = self._phases.num_passes
        if len(self._idle) == MOST_IDLE and self._on_idle is not None:
            self._on_idle(tuple(dict.fromkeys(self._idle)))

    def _end(self, optimizer: Optimizer, *_: Any, scaled: bool = False) -> None:
        if is_dynamo_compiling():
            self._in_graph.append(optimizer)
            return
        known = self._known[id(optimizer)]
        if not known.depths:
            return  # it began while only ends were seen
        index, depth = known.index, known.depths.pop()
        self._phases.pop(depth)
        if depth != OUTERMOST and self._phases.is_in(BACKWARD):
            self.in_backward.append(index)
            return
        self._on_any_step()
        is_first = self._counter.reference == NO_OPTIMIZER
        if self._counter.leave(index, scaled=scaled) and not (is_first and self._is_of_counted_pass()):
            self._on_step()

    def _is_of_counted_pass(self) -> bool:
        """Return whether the last backward pass was a step of its own: the first optimizer was built after it."""
        return self._phases.num_passes == self._stepped_by_pass

    def backward_ended(self) -> None:
        """A backward pass ended, in no other one: so do the steps taken in it and, without any torch optimizer, a step
        of its own.
        """
        if self.any_seen:
            if self.in_backward:
                self._end_those_in_backward()
            return
        if self._patience:
            self._patience -= 1
            return
        self._check()
        self._on_any_step()
        self._stepped_by_pass = self._phases.num_passes
        self._counter.enter(NO_OPTIMIZER)
        if self._counter.leave(NO_OPTIMIZER):
            self._on_step()

    def _end_those_in_backward(self) -> None:
        """End the steps taken in a backward pass, one for each parameter perhaps: together they are the first one's."""
        first, self.in_backward = min(self.in_backward), []
        self._on_any_step()
        self._counter.enter(first)
        if self._counter.leave(first):
            self._on_step()


def _nothing(*_: Any) -> None:
    """Take no notice."""


def _does_nothing(optimizer: Optimizer, arguments: Iterable[Any]) -> bool:
    """Return whether a step changes nothing: one of torch's own without a closure, where no parameter has a gradient.

    Before they train, scripts take such steps to draw a schedule of learning rates.
    """
    if not type(optimizer).__module__.startswith("torch.optim.") or any(argument is not None for argument in arguments):
        return False
    return all(parameter.grad is None for group in optimizer.param_groups for parameter in group["params"])


def _holds_parameters(optimizer: Optimizer) -> bool:
    """Return whether it trains a module, not variables of a problem that is solved in the backward pass."""
    return any(isinstance(tensor, nn.Parameter) for group in optimizer.param_groups for tensor in group["params"])
