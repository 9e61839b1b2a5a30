"""Where the host's time goes: a stack of phases with exclusive times, and the backward passes and copies that enter it.

Within a step it is only noted when a phase is entered or left; what each took is worked out from that afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import get_ident
from typing import Any

import msgspec
import torch
from torch import nn

from dpdoctor.records import ALL_PHASES, BETWEEN, PHASES
from dpdoctor.worker.base.patches import Patches

# Depths of a phase: of one that is none, in another thread, and of one that no other lies around.
ELSEWHERE, OUTERMOST = -1, 1
_NO_THREAD = -1
DATA_WAIT, H2D, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))
COMMUNICATION = len(PHASES)
_BETWEEN = {(PHASES.index(a), PHASES.index(b)): PHASES.index(of) for (a, b), of in BETWEEN.items()}
_TRAINING = frozenset((FORWARD, BACKWARD, OPTIMIZER))
# Noted beside the phases: parameters have changed since the last backward pass.
_CHANGED = len(ALL_PHASES)
# Whoever updates the model changes all of its trained parameters: a few of them show it.
LOOKED_AT = 4
# Most scripts go on to the next step after a backward pass: where nobody asked after so many, nobody does.
UNASKED = 16


class Notes(msgspec.Struct, gc=False):
    """What was noted of one step, from `begin_ns` to `end_ns`.

    Attributes:
        log: in turns, what happened and when, in ns. A phase that was entered by its number; one that was left, with
            all that lie in it, by the complement of its depth; _CHANGED before an entry.
        num_phases: how many of ALL_PHASES are told.
    """

    begin_ns: int
    end_ns: int
    log: list[int]
    num_phases: int = len(PHASES)

    @property
    def duration_ns(self) -> int:
        """Return how long the step took."""
        return self.end_ns - self.begin_ns

    def phases_ns(self) -> tuple[int, ...]:
        """Return the step's time per phase; it adds up to the duration."""
        totals, stack, since_ns = [0] * len(ALL_PHASES), [OTHER], self.begin_ns
        last: int | None = None
        other_before, has_changed = 0, False
        notes = iter(self.log)
        for what, now_ns in zip(notes, notes, strict=True):
            totals[stack[-1]] += now_ns - since_ns
            since_ns = now_ns
            if what == _CHANGED:
                has_changed = True
            elif what >= 0:
                of = phase_between(last, what, has_changed=has_changed) if len(stack) == 1 else OTHER
                if of != OTHER:
                    totals[of] += totals[OTHER] - other_before
                    totals[OTHER] = other_before
                has_changed = False
                stack.append(what)
            else:
                if ~what == 1 and len(stack) > 1 and stack[1] in _TRAINING:
                    last, other_before = stack[1], totals[OTHER]
                del stack[~what:]
        totals[stack[-1]] += self.end_ns - since_ns
        return tuple(totals[: self.num_phases])


def phase_between(last: int | None, phase: int, *, has_changed: bool) -> int:
    """Return the phase of what lies between two of forward, backward and update; OTHER: nobody's but the loop's.

    `last`: None where there was none before. `has_changed`: parameters have, since a backward pass.
    """
    if last is None:
        return OTHER
    return OPTIMIZER if has_changed else _BETWEEN.get((last, phase), OTHER)


class PhaseClock:
    """Charges every nanosecond to the phase on top of the stack; what no phase claims is `other`.

    Nested phases (a forward inside an LBFGS closure inside the optimizer) are charged to the innermost; what lies
    between two phases of one step may be of one of them, as records.BETWEEN says. Between a backward and a forward it
    is the optimizer's where parameters changed meanwhile: the first step of SAM. It is the time of one thread, the one
    that trains: what a prefetching thread of the script does at the same moment is not charged.

    Attributes:
        num_passes: how many backward passes have begun.
        gap: while phases are marked the number of the present or the next stretch between two of forward, backward and
            update; `claimed` are those that belong to a phase, and `has_fetched` is whether a loader was asked in this.
        num_phases: how many of ALL_PHASES a step's notes tell; all where that is of communication, too.
        updates: tells whether parameters have changed; None: nobody knows.
        lets_pass: whether hooks are to do nothing but what they stand in for.
        thread: the one that is charged; None: whichever asks.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._stack = [OTHER]
        self._log: list[int] = []
        self._begin_ns = clock()
        self.thread: int | None = None
        self._marker: Callable[[int], AbstractContextManager[Any]] | None = None
        # Of the phases that are open, the innermost last, each with its place in the stack.
        self._marks: list[tuple[int, AbstractContextManager[Any]]] = []
        self._last: int | None = None
        self.gap = self.num_passes = 0
        self.claimed: set[int] = set()
        self.has_fetched = False
        self.num_phases = len(PHASES)
        self.updates: Updates | None = None
        self.lets_pass = False

    def belongs_here(self) -> None:
        """Charge this thread from now on, and no other."""
        self.thread = get_ident()

    def belongs_nowhere(self) -> None:
        """Charge no thread any more: what still pushes phases takes note of nothing."""
        self.thread = _NO_THREAD

    def is_elsewhere(self) -> bool:
        """Return whether the calling thread is another than the one that trains."""
        return self.thread is not None and self.thread != get_ident()

    def is_outside(self) -> bool:
        """Return whether no phase claims the present moment; any thread may ask."""
        return len(self._stack) == 1

    @property
    def follows_backward(self) -> bool:
        """Return whether of forward, backward and update a backward pass ended last in this step."""
        return self._last == BACKWARD

    def is_in(self, phase: int) -> bool:
        """Return whether a phase is open."""
        return phase in self._stack

    def mark(self, marker: Callable[[int], AbstractContextManager[Any]] | None) -> None:
        """Hold what `marker` returns for a phase while that is open, from the next on; None: no more."""
        self._marker = marker
        if marker is None:
            self._unmark(0)

    def push(self, phase: int) -> int:
        """Enter a phase and return the depth to hand to `pop`; in another thread nothing happens."""
        if self.thread is not None and self.thread != get_ident():
            return ELSEWHERE
        stack, now_ns, has_changed = self._stack, self._clock(), False
        depth = len(stack)
        if phase == BACKWARD:
            self.num_passes += 1
        elif self._last == BACKWARD and phase == FORWARD and depth == OUTERMOST and self.updates is not None:
            has_changed = self.updates.changed()
            if has_changed:
                self._log += (_CHANGED, now_ns)
        self._log += (phase, now_ns)
        stack.append(phase)
        if self._marker is not None:
            self._mark(phase, depth, has_changed=has_changed)
        return depth

    def pop(self, depth: int) -> None:
        """Leave the phase entered at `depth`, and whatever an exception left open above it."""
        if depth == ELSEWHERE:
            return
        stack = self._stack
        self._log += (~depth, self._clock())
        if depth == OUTERMOST and len(stack) > 1:
            phase = stack[1]
            if phase in _TRAINING:
                self._last = phase
                if phase == BACKWARD and self.updates is not None and self.updates.is_asked:
                    self.updates.note()
            if self._marker is not None:
                self._end_gap(phase)
        elif len(stack) > depth and stack[depth] == OPTIMIZER:
            self._last = OPTIMIZER  # one that another one holds, whose own step goes on
        del stack[depth:]
        if self._marks:
            self._unmark(depth)

    def lap(self) -> Notes:
        """End a step: return what was noted of it, and begin the next.

        Phases that are open end with it: one that an exception left open must not swallow the steps that follow.
        """
        now_ns = self._clock()
        notes = Notes(self._begin_ns, now_ns, self._log, self.num_phases)
        self._log, self._begin_ns, self._last = [], now_ns, None
        if len(self._stack) > 1:
            self._stack = [OTHER]
        if self._marker is not None:
            self._end_gap(OTHER)
            self._unmark(OUTERMOST)
        return notes

    def _end_gap(self, phase: int) -> None:
        """Begin another gap after a phase, or after the step where that is `other`; a fetch only lies in one."""
        if phase == DATA_WAIT:
            self.has_fetched = True
        elif phase == OTHER or phase in _TRAINING:
            self.gap, self.has_fetched = self.gap + 1, False

    def _mark(self, phase: int, depth: int, *, has_changed: bool) -> None:
        if depth == 1 and phase_between(self._last, phase, has_changed=has_changed) != OTHER:
            self.claimed.add(self.gap)
        if phase != COMMUNICATION and self._marker is not None:  # a trace shows that by itself
            mark = self._marker(phase)
            mark.__enter__()
            self._marks.append((depth, mark))

    def _unmark(self, depth: int) -> None:
        while self._marks and self._marks[-1][0] >= depth:
            _, mark = self._marks.pop()
            mark.__exit__(None, None, None)


class Updates:
    """Tells whether parameters changed between `note` and `changed`: in place, or by getting other memory.

    No device is asked for their values. Noted is no more where nobody asks; the first who asks again is told that they
    did not.

    Attributes:
        is_asked: whether anybody asked lately: else there is nothing to note.
    """

    def __init__(self, modules: Callable[[], Sequence[nn.Module]]) -> None:
        self._modules = modules
        self._num_modules = 0
        self._parameters: list[nn.Parameter] = []
        self._noted: list[tuple[int, int]] = []
        self._unasked = 0
        self.is_asked = True

    def note(self) -> None:
        """Keep what the parameters are now."""
        self._unasked += 1
        self.is_asked = self._unasked <= UNASKED
        self._noted = self._state() if self.is_asked else []

    def changed(self) -> bool:
        """Return whether they are others than when they were noted."""
        self._unasked, self.is_asked = 0, True
        return bool(self._noted) and self._state() != self._noted

    def _state(self) -> list[tuple[int, int]]:
        modules = self._modules()
        if len(modules) != self._num_modules:
            self._num_modules = len(modules)
            # Of others, such as shards, it is not known what these attributes tell.
            plain = (p for module in modules for p in module.parameters() if type(p) is nn.Parameter)
            trained = [parameter for parameter in plain if parameter.requires_grad]
            self._parameters = trained[:: max(1, len(trained) // LOOKED_AT)]
        return [(parameter._version, parameter.data_ptr()) for parameter in self._parameters]


def watch_backward(
    patches: Patches,
    phases: PhaseClock,
    after: Callable[[], None],
    *,
    before: Callable[[Any, bool, bool], None] | None = None,
) -> None:
    """See every backward pass: `after` is called when it has ended, or the one that it runs inside of, as checkpointing
    and reversible models have it.

    `before` gets what it starts from, whether it is to have a graph of its own, and whether it keeps the one it has.

    Of torch.autograd.grad only the time is taken: it may be a penalty's, and leaves no gradients in parameters.
    """
    original, grad = torch.autograd.backward, torch.autograd.grad

    @functools.wraps(grad)
    def timed_grad(*args: Any, **kwargs: Any) -> Any:
        if phases.lets_pass:
            return grad(*args, **kwargs)
        depth = phases.push(BACKWARD)
        try:
            return grad(*args, **kwargs)
        finally:
            phases.pop(depth)

    @functools.wraps(original)
    def backward(
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: Any = None,
        create_graph: Any = False,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if phases.lets_pass:
            original(tensors, grad_tensors, retain_graph, create_graph, *args, **kwargs)
            return
        if before is not None:
            before(tensors, bool(create_graph), bool(create_graph or retain_graph))
        depth = phases.push(BACKWARD)
        try:
            original(tensors, grad_tensors, retain_graph, create_graph, *args, **kwargs)
        finally:
            phases.pop(depth)
        if depth == OUTERMOST or not phases.is_in(BACKWARD):
            after()

    patches.replace(torch.autograd, "backward", backward)
    patches.replace(torch.autograd, "grad", timed_grad)


def watch_copies(
    patches: Patches,
    phases: PhaseClock,
    before: Callable[[torch.Tensor], None],
    after: Callable[[torch.Tensor, torch.Tensor], None],
) -> None:
    """Charge the host's time in copies from the host to a device; `before` gets each tensor, `after` its copy, too.

    Only for machines with a device.
    """
    for name in ("to", "cuda"):
        original = getattr(torch.Tensor, name)

        def copy(
            tensor: torch.Tensor, *args: Any, _original: Any = original, _always: bool = name == "cuda", **kwargs: Any
        ) -> Any:
            targets = (*args[:1], kwargs.get("device"), kwargs.get("other"))
            if phases.lets_pass or tensor.is_cuda or not (_always or any(map(_is_device, targets))):
                return _original(tensor, *args, **kwargs)
            before(tensor)
            depth = phases.push(H2D)
            try:
                copied = _original(tensor, *args, **kwargs)
            finally:
                phases.pop(depth)
            after(tensor, copied)
            return copied

        patches.replace(torch.Tensor, name, functools.wraps(original)(copy))


def _is_device(target: Any) -> bool:
    """Return whether `tensor.to(target)` ends on a CUDA device; `to(torch.float64)`, say, stays where it is."""
    if isinstance(target, torch.Tensor):
        return target.is_cuda
    return isinstance(target, int) or (isinstance(target, (str, torch.device)) and str(target).startswith("cuda"))
