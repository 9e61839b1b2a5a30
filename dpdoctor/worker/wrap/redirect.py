"""Stands where a script calls its model: sends training forwards to the mode's wrapper and counts them."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from threading import get_ident
from typing import Any

import torch
from torch import is_grad_enabled, nn
from torch.compiler import is_compiling
from torch.nn.utils.rnn import PackedSequence

from dpdoctor.worker.base import structure
from dpdoctor.worker.facts.events import Evaluations
from dpdoctor.worker.timing.batches import MOST_VALUES, Look, Pass, storages
from dpdoctor.worker.timing.phases import FORWARD, PhaseClock
from dpdoctor.worker.timing.tally import Tally
from dpdoctor.worker.wrap.batch_dims import BatchDims, Given
from dpdoctor.worker.wrap.entered import Entered

# A model that returns more tensors than this is not followed: a hook for each would cost more than it tells.
MOST_NODES = 16


class Redirect:
    """Stands in for a call of a wrapped module, or for a method of it.

    For a call it is the instance's `_compiled_call_impl`, which torch calls first and never copies or pickles; for a
    method, the instance's attribute of that name, which is copied and pickled as the method. Training forwards go to
    `target`; forwards without gradients and those that `target` makes itself go straight to the module, so that an
    evaluation on one rank waits for nobody.

    Args:
        module: the wrapped module.
        target: what a training forward calls.
        watch: what it reports to.
        own_call: what the script would call by itself: its own compilation of the module, if it made one.
        method: the bound method; None: the module's own call.
    """

    def __init__(
        self,
        module: nn.Module,
        target: Callable[..., Any],
        watch: Watch,
        own_call: Callable[..., Any] | None = None,
        method: Callable[..., Any] | None = None,
    ) -> None:
        self._module = module
        self._plain: Callable[..., Any] = method or module._call_impl
        self._own_call = own_call or self._plain
        self._target = target
        if method is not None:
            functools.update_wrapper(self, method)  # its signature is looked at
        self._watch = watch
        self._thread: int | None = None
        # Of the wrapped modules that this one is a part of. One that was called since the last backward pass stands
        # for it: gradients of all parameters are reduced there.
        self.holders: frozenset[int] = frozenset()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Traced by dynamo, from inside a compiled wrapper: the answer is a constant to it, a thread's number is not.
        if is_compiling() or self._thread == (thread := get_ident()):
            return self._plain(*args, **kwargs)
        watch = self._watch
        if watch.phases.lets_pass:
            return self._own_call(*args, **kwargs)
        if self.holders and not self.holders.isdisjoint(watch.open_passes):
            return self._own_call(*args, **kwargs)
        if not is_grad_enabled():
            watch.evaluating_forward()
            return self._own_call(*args, **kwargs)
        given = None
        if not watch.tally.loaders_count and not watch.repeats(self._module, args):
            given = watch.given(self._module, args, kwargs)
        training = watch.training_forward(self._module, args, kwargs, given)
        depth = watch.phases.push(FORWARD)
        self._thread = thread
        try:
            if given is None and watch.through is None and watch.passing_over is None:
                output = self._target(*args, **kwargs)
            else:
                output = self._run(args, kwargs, given)
            if training is not None:
                follow(training, output)
        except BaseException:
            if training is not None:
                training.followed()  # no backward pass will come to it
            raise
        finally:
            self._thread = None
            watch.phases.pop(depth)
        return output

    def __reduce__(self) -> Any:
        return self._plain.__reduce__()

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], given: Given | None) -> Any:
        watch, through = self._watch, self._watch.through
        aside = contextlib.nullcontext() if watch.passing_over is None else watch.passing_over()
        with aside, contextlib.nullcontext() if given is None else given.looking():
            output = self._target(*args, **kwargs) if through is None else through(self._target, args, kwargs)
        if given is not None:
            given.returned(output)
        return output


class Watch:
    """What a forward reports to. `forwards` counts, by id of the module, the first forward after each backward.

    Attributes:
        evaluations: told of forwards that train and that do not; None: nobody is.
        through: calls a training forward's target with these arguments, in a way of its own; None: as it is.
        micro_batch: of the module that is called: which backward pass over it since an optimizer stepped, from 1.
        micro_batches: how many each module that had any had whenever an optimizer stepped, since it was last cleared.
        open_passes: ids of the modules of which a training forward has begun that no backward pass followed.
        is_training: whether a training forward has begun in the present step.
        entered: what the steps trained on, told when `entered.is_on`.
        batch_dims: which dimensions of what models are called with are the batch's.
        passing_over: what a forward draws inside of this is known to pick no samples; None: nobody asks any more.
    """

    def __init__(
        self,
        phases: PhaseClock,
        tally: Tally,
        evaluations: Evaluations | None = None,
        states: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.phases = phases
        self.tally = tally
        self.evaluations = evaluations
        self.keep_inputs = False
        self.forwards: Counter[int] = Counter()
        self.open_passes: set[int] = set()
        self.through: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any] | None = None
        self.micro_batch = 0
        self.micro_batches: list[int] = []
        self._passes: defaultdict[int, int] = defaultdict(int)
        self.is_training = False
        self.inputs: list[torch.Tensor] = []
        self.entered = Entered(states)
        self.passing_over: Callable[[], contextlib.AbstractContextManager[None]] | None = None
        self.batch_dims = BatchDims()

    def repeats(self, module: nn.Module, args: tuple[Any, ...]) -> bool:
        """Return whether a training forward is as in the steps before, in which no loader counted."""
        first = args[0] if args and module.training else None
        return type(first) is torch.Tensor and self.tally.repeats(id(module), first)

    def given(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given | None:
        """Return what is to be known of the first tensor that a forward is called with; None: there is none."""
        with torch._C.DisableTorchFunctionSubclass():
            first = _first(args, kwargs)
            if first is None or not first.dim():
                return None
            return self.batch_dims.given(module, first, structure.tensors((args, kwargs), MOST_VALUES))

    def training_forward(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], given: Given | None = None
    ) -> Pass | None:
        """A training forward of the module begins, with `given` as its first tensor; return Tally.trained's."""
        number, in_training, evaluations = id(module), module.training, self.evaluations
        if number not in self.open_passes:
            self.open_passes.add(number)
            self.forwards[number] += 1
            self._passes[number] += 1
            self.is_training = True
        self.micro_batch = self._passes[number]
        # As PhaseClock.is_elsewhere says; this runs in each step.
        if evaluations is not None and (self.phases.thread == get_ident() or self.phases.thread is None):
            if in_training:
                evaluations.trains()
            else:
                evaluations.forward(with_gradients=True)
        first = args[0] if args and given is None and in_training else None
        # Most scripts call their model so, and in most steps nothing else is to be done.
        if (
            type(first) is torch.Tensor
            and not (self.entered.is_on or self.keep_inputs)
            and self.tally.trained_as_before(first, (number, None), alone=len(args) == 1 and not kwargs)
        ):
            return None
        # A tensor class of the script's may refuse, or do much, when it is looked at.
        with torch._C.DisableTorchFunctionSubclass():
            training = self._trained(module, args, kwargs, given)
            if self.entered.is_on:
                tensors = structure.tensors((args, kwargs), MOST_VALUES)
                self.entered.forward(tensors, number, in_eval_mode=not in_training)
            if self.keep_inputs and (in_training or not self.inputs):
                self.inputs = list(structure.tensors((args, kwargs), MOST_VALUES))
                self.keep_inputs = not in_training  # it may only evaluate
        return training

    def _trained(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], given: Given | None
    ) -> Pass | None:
        first = _first(args, kwargs)
        is_plain = given is None and module.training
        alone = len(args) + len(kwargs) == 1
        if is_plain and first is not None and self.tally.trained_as_before(first, (id(module), None), alone=alone):
            return None
        return self.tally.trained(
            first.size(0) if first is not None and first.dim() else 0,
            elements=0 if first is None else first.numel(),
            in_eval_mode=not module.training,
            storages=storages((args, kwargs)),
            look=functools.partial(_look, args, kwargs),
            samples=given.rows if given is not None else None,
            call=(id(module), given.place if given is not None else None),
            goes_on=given is not None
            and any(t.grad_fn is not None for t in structure.tensors((args, kwargs), MOST_VALUES)),
            changes_input=given is not None and any(map(_is_of_a_leaf, structure.tensors((args, kwargs), MOST_VALUES))),
        )

    def evaluating_forward(self) -> None:
        """A forward without gradients begins."""
        self.tally.evaluated()
        if self.evaluations is not None and not self.phases.is_elsewhere():
            self.evaluations.forward()

    def optimizer_stepped(self) -> None:
        """An optimizer took its step, of whichever parameters: what follows adds to no gradients that it used."""
        self.tally.optimizer_stepped()
        self.micro_batches += self._passes.values()
        self._passes.clear()
        self.batch_dims.met.clear()

    def backward_ended(self) -> None:
        """A backward pass ended: the next forward of a module is a new pass over its parameters."""
        self.open_passes.clear()
        if self.entered.is_on:
            self.entered.backward_ended()
        if self.evaluations is not None and self.evaluations.doubt_ns is not None:
            self.evaluations.backward()


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Return the first tensor among the arguments or in a dict or dataclass of them; None when a list holds it.

    It is one that has a dimension, which a time has not.
    """
    first = args[0] if args else None
    if not isinstance(first, torch.Tensor) or not first.dim():
        values = (item for value in (*args, *kwargs.values()) for item in _items(value))
        first = next((value for value in values if isinstance(value, (list, tuple)) or _has_rows(value)), None)
    return first if isinstance(first, torch.Tensor) else None


def _has_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _is_of_a_leaf(tensor: torch.Tensor) -> bool:
    """Return whether a backward pass gives gradients to a tensor, or to one that it was made of: to no parameter."""
    if not tensor.requires_grad or isinstance(tensor, nn.Parameter):
        return False
    nodes = [tensor.grad_fn]
    for node in nodes:  # it grows meanwhile
        if node is None:
            return True
        made_of = getattr(node, "variable", None)
        if made_of is not None:
            return not isinstance(made_of, nn.Parameter)
        if len(nodes) < MOST_NODES:
            nodes += [parent for parent, _ in node.next_functions if parent is not None]
    return False


def follow(training: Pass, output: Any) -> None:
    """Let a forward know when a backward pass comes to what it returned, where that is tensors and nothing else."""
    nodes: list[Any] = []
    if _gather_nodes(output, nodes) and 0 < len(nodes) <= MOST_NODES:
        training.followed()
        for node in nodes:
            node.register_prehook(training.reach)


def _gather_nodes(output: Any, nodes: list[Any]) -> bool:
    """Add the nodes of autograd that made the tensors in nested containers; return False at anything unknown."""
    for value in structure.nested(output):
        if isinstance(value, torch.Tensor):
            if value.grad_fn is not None:
                nodes.append(value.grad_fn)
        elif not (value is None or isinstance(value, (Mapping, list, tuple, bool, int, float, str))):
            return False
    return True


def _look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Look:
    """Return dim 0 of the tensors in nested containers, and dim 1 where that may be the batch: not of (rows, features).

    Lengths of lists may be the batch as well. A tensor is a part where more lies in its memory than it shows.
    """
    sizes: set[int] = set()
    across: set[int] = set()
    wholes: set[int] = set()
    is_part = False
    given = structure.nested((*args, *kwargs.values()), MOST_VALUES)
    next(given)  # how many arguments there are
    for value in given:
        if isinstance(value, PackedSequence):
            sizes.add(int(value.batch_sizes[0]))
        elif isinstance(value, (list, tuple)):
            sizes.add(len(value))
        elif isinstance(value, torch.Tensor):
            is_matrix = value.dim() == 2 and value.is_floating_point()
            dims = structure.shape(value)[: 1 if is_matrix else 2]
            sizes.update(dims)
            with contextlib.suppress(RuntimeError, NotImplementedError):  # sparse tensors have no storage
                shown, lying = value.numel() * value.element_size(), value.untyped_storage().nbytes()
                if shown < lying:
                    is_part = True
                    across.update(dims[1:])
                    if dims and shown and lying * dims[0] % shown == 0:
                        wholes.add(lying * dims[0] // shown)
    return Look(frozenset(sizes), is_part, frozenset(across), frozenset(wholes))


def _items(value: Any) -> Iterable[Any]:
    held = structure.named(value)
    return (value,) if held is None else held
