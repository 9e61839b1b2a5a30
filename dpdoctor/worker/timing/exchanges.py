"""What a script that distributes itself exchanges: collectives per step, how long the host is in them, whose they are.

Calls that Python makes are seen one by one, and an ablation may have copies within the rank take their place; those
that torch's reducer makes by itself are only counted.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from operator import methodcaller
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from dpdoctor.records import ALL_PHASES
from dpdoctor.worker.base import lines, structure
from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.timing.phases import BACKWARD, COMMUNICATION, PhaseClock

# Methods of torch's ProcessGroup, by which every collective of torch.distributed goes.
_OPERATIONS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "send": "send",
    "recv": "recv",
    "barrier": "barrier",
}
REDUCTIONS = frozenset({"all_reduce", "reduce", "reduce_scatter"})
_sequence_number = methodcaller("_get_sequence_number_for_group")
# Where torch.distributed's own functions are, and what wraps some, as `deprecated` does: who called lies behind.
_INTERNAL = ("distributed_c10d.py", "c10d_logger.py", "typing_extensions.py", contextlib.__file__, warnings.__file__)
_TORCH = f"{Path(torch.__file__).parent}/"
# A rhythm of more steps than this, such as of a loss that is logged, is none that windows could follow.
MOST_PERIOD = 32
# Of the steps in which a script sets up what it exchanges nothing is learnt.
NOT_USUAL = 3


class Call(NamedTuple):
    """One call of the script's own: where, what, how many bytes, and whether a backward pass was going on.

    `before_update`: it came in a backward pass or after it, before parameters were updated: it carries gradients.
    """

    line: str
    operation: str
    num_bytes: int
    in_backward: bool
    before_update: bool = False


class Site:
    """A line that calls one operation: what it carries, in elements, as far as `settle` has seen.

    Attributes:
        operation: as "all_reduce".
        words: its operation, file and line, alike on all ranks.
        is_ours: a file of dpdoctor's calls it, as where it wraps: that is no exchange of the script.
        is_payload: whether it exchanges parameters or gradients. Of the single numbers among what it carries, those are
            payload only if `scalars` says so: else they may be flags or a loss, through the same line.
        is_ambiguous: single numbers of it were both.
        of_gradients: how many calls of it carry a gradient each in every step that has any, none of them a bucket's;
            0: they do not, or not always as many.
    """

    __slots__ = (
        *("_calls", "_code", "_gradients", "_is_torchs", "_most", "_now", "_num_calls", "_scalars"),
        *("is_ambiguous", "is_ours", "is_payload", "of_gradients", "operation", "scalars", "words"),
    )

    def __init__(self, operation: str, code: CodeType, line: int) -> None:
        self._code = code  # by whose identity it is known
        self.operation = operation
        self.words = f"{operation} at {code.co_filename}:{line}"
        self.is_ours = lines.is_ours(code.co_filename)
        self._is_torchs = code.co_filename.startswith(_TORCH)
        self._now = self._most = self._calls = self.of_gradients = 0
        self._num_calls: set[int] = set()
        self._gradients: set[bool] = set()
        self._scalars: set[bool] = set()
        self.is_payload = self.scalars = self.is_ambiguous = False

    def saw(self, size: int, is_trained: Callable[[], bool], is_gradient: Callable[[], bool]) -> None:
        """Take note of a call that carries so many elements."""
        if self.is_ours:
            return
        if not self._calls:  # one call of a step tells what the line carries
            self._gradients.add(is_gradient())
        self._calls += 1
        self._now += size
        if size == 1 and len(self._scalars) < 2:
            self._scalars.add(is_trained())

    def step_ended(self) -> None:
        """Take note of a step."""
        if self._calls:
            self._num_calls.add(self._calls)
        self._most, self._now, self._calls = max(self._most, self._now), 0, 0

    def settle(self, least: float) -> None:
        """Decide whether it exchanges what is trained: at least so many elements of it in a step."""
        self.step_ended()
        self.is_payload = self._most >= least and (self._most > 1 or True in self._scalars or self._is_torchs)
        self.scalars = self._is_torchs or True in self._scalars
        self.is_ambiguous = self.is_payload and not self._is_torchs and len(self._scalars) > 1
        is_alike = self.is_payload and not self._is_torchs and self._gradients == {True} and len(self._num_calls) == 1
        self.of_gradients = max(self._num_calls) if is_alike else 0

    def carries(self, tensors: Any, size: int) -> bool:
        """Return whether a call with these tensors, of so many elements, is one of gradients or parameters."""
        if size == 1 and not self.scalars:
            return False
        return self._is_torchs or next(structure.tensors(tensors)).is_floating_point()


class Issued(msgspec.Struct, kw_only=True):
    """What was exchanged in consecutive steps of one rank.

    Attributes:
        collectives: that were issued, over all groups; None: not known. `called`: by Python, on the thread that trains.
        payload: calls of Python's that carry gradients or parameters, `dropped` ones of them copied within the rank.
        kept: its other calls; `kept_elements` in the largest of them.
        num_bytes: of all that Python exchanges, known while lines are learnt.
        each: of a window, in how many steps these four numbers were alike: collectives, kept, payload, dropped.
    """

    steps: int = 0
    collectives: int | None = 0
    called: int = 0
    payload: int = 0
    dropped: int = 0
    kept: int = 0
    kept_elements: int = 0
    num_bytes: int = 0
    each: dict[tuple[int, int, int, int], int] = {}

    def add(self, other: Issued) -> None:
        """Add those of one more step."""
        numbers = other.collectives or 0, other.kept, other.payload, other.dropped
        self.each[numbers] = self.each.get(numbers, 0) + 1
        self.steps += other.steps
        is_known = self.collectives is not None and other.collectives is not None
        self.collectives = (self.collectives or 0) + (other.collectives or 0) if is_known else None
        self.called += other.called
        self.payload += other.payload
        self.dropped += other.dropped
        self.kept += other.kept
        self.kept_elements = max(self.kept_elements, other.kept_elements)
        self.num_bytes += other.num_bytes


_NOTHING = Issued()


class Exchanges:
    """Counts collectives from step to step, and times them where `times`.

    `calls` are the script's own while `is_on`, `kinds` all of them. Among several ranks those of a group of one are
    none: nothing is exchanged.

    Attributes:
        num_steps: that were counted, and in which no ablation left anything out; `num_exchanging` of them exchanged
            something.
        is_known: whether torch tells how many collectives there were.
        sites: where Python calls collectives.
        instead: does within the rank what a method of a process group would do with others, for calls of payload; None:
            all of them go out. Given the method's name, the group and its arguments. Only at the sites in `left_out`.
        last: what was exchanged in the last step.
        is_trained: whether a tensor is a trained parameter or its gradient; `is_gradient`: the latter.
        looks: whether lines are told apart; where no ablation will need them, calls are counted and timed only.
    """

    def __init__(self, phases: PhaseClock, *, times: bool = True) -> None:
        self._phases = phases
        self._times = times
        self._issued = 0
        self._has_others = False
        self.is_on = False
        self.looks = True
        self.is_known = True
        self.calls: list[Call] = []
        self.kinds: Counter[str] = Counter()
        self.num_steps = self.num_exchanging = 0
        self.sites: dict[tuple[int, int, str], Site] = {}
        self.instead: Callable[[str, dist.ProcessGroup, tuple[Any, ...]], dist.Work] | None = None
        self.is_trained: Callable[[torch.Tensor], bool] = lambda _: False
        self.is_gradient: Callable[[torch.Tensor], bool] = lambda _: False
        self._is_learning = True
        self.left_out: frozenset[Site] = frozenset()
        self.last = self._step = Issued()
        # The last step in which Python called nothing.
        self._plain = Issued(steps=1, collectives=None)
        self._window: list[Issued] = []
        self._groups = distributed_c10d._world.pg_map
        self._usual: list[int] = []

    def watch(self, patches: Patches) -> None:
        """See the calls of every group, and the waits for them."""
        # What inspect or getattr gives is bound, and put back it would break every later call.
        methods = vars(dist.ProcessGroup)
        for name, operation in _OPERATIONS.items():
            if name in methods:
                patches.replace(dist.ProcessGroup, name, self._seen(methods[name], name, operation))
        if self._times:
            patches.replace(dist.Work, "wait", self._timed(vars(dist.Work)["wait"]))
            self._phases.num_phases = len(ALL_PHASES)
        self._issued = self._sequence_numbers()

    def _seen(self, original: Callable[..., Any], name: str, operation: str) -> Callable[..., Any]:
        is_movable = name in LOCAL_COPIES
        timed = self._timed(original) if self._times else original

        def seen(subject: Any, *args: Any, **kwargs: Any) -> Any:
            if self._phases.lets_pass:
                return original(subject, *args, **kwargs)
            if self._has_others and subject.size() == 1:
                return timed(subject, *args, **kwargs)
            if not self._phases.is_elsewhere():
                self._step.called += 1
            if not (self.looks or self.is_on):
                return timed(subject, *args, **kwargs)
            # Also in threads of torch's own, in which FSDP exchanges on a GPU.
            site = self._look(operation, args, is_movable=is_movable)
            if site is not None and self.instead is not None and site in self.left_out:
                self._step.dropped += 1
                return self.instead(name, subject, args)
            return timed(subject, *args, **kwargs)

        return functools.wraps(original)(seen) if hasattr(original, "__name__") else seen

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def timed(subject: Any, *args: Any, **kwargs: Any) -> Any:
            if self._phases.lets_pass:
                return original(subject, *args, **kwargs)
            depth = self._phases.push(COMMUNICATION)
            try:
                return original(subject, *args, **kwargs)
            finally:
                self._phases.pop(depth)

        return functools.wraps(original)(timed) if hasattr(original, "__name__") else timed

    def _look(self, operation: str, args: tuple[Any, ...], *, is_movable: bool) -> Site | None:
        """Take note of a call; return where it is made if it carries gradients or parameters."""
        code, line = _caller()
        site = self.sites.get((id(code), line, operation))
        if site is None:
            site = self.sites[id(code), line, operation] = Site(operation, code, line)
        if self.is_on and not self._is_of_a_thread():
            self._note(operation, code, line, args)
        if self._is_learning:
            self._learn(site, args, is_movable=is_movable)
            return None
        size = _size(args[0]) if is_movable else 0
        step = self._step
        if site.is_payload and size and site.carries(args[0], size):
            step.payload += 1
            return site
        if not site.is_ours:
            step.kept += 1
            step.kept_elements = max(step.kept_elements, size)
        return None

    def _learn(self, site: Site, args: tuple[Any, ...], *, is_movable: bool) -> None:
        self._step.num_bytes += max(map(_num_bytes, args[:2]), default=0)  # gathers have the whole in one of them
        tensors = list(structure.tensors(args[:1])) if is_movable else []
        if tensors and not self._is_of_a_thread():
            site.saw(
                _size(tensors), lambda: any(map(self.is_trained, tensors)), lambda: all(map(self.is_gradient, tensors))
            )

    def _is_of_a_thread(self) -> bool:
        """Return whether a thread of the script's exchanges beside the training: ranks may stand elsewhere in it.

        On a GPU hooks of gradients run in a thread of autograd's, which is none of these.
        """
        return self._phases.is_elsewhere() and not self._phases.is_in(BACKWARD)

    def settle(self, least: float) -> None:
        """Decide which lines exchange what is trained, at least so many elements in a step; nothing is learnt later."""
        self._is_learning = False
        for site in self.sites.values():
            site.settle(least)

    def _note(self, operation: str, code: CodeType, line: int, args: tuple[Any, ...]) -> None:
        self.kinds[operation] += 1
        if lines.is_users(code.co_filename):
            where = f"{code.co_filename}:{line}"
            in_backward = self._phases.is_in(BACKWARD)
            before_update = in_backward or self._phases.follows_backward
            self.calls.append(Call(where, operation, _num_bytes(args[:1]), in_backward, before_update))

    def lap(self) -> int | None:
        """End a step: return the collectives that were issued in it; None: not known."""
        issued, before = self._sequence_numbers(), self._issued
        self._issued = issued
        # A group that the script destroyed took its number with it.
        found = max(0, issued - before) if self.is_known else None
        is_plain = self._step == _NOTHING
        if is_plain and found == self._plain.collectives:
            self.last = self._plain  # as most steps are
        else:
            self._step.steps, self._step.collectives = 1, found
            self.last, self._step = self._step, Issued()
            if is_plain:
                self._plain = self.last
        if self._is_learning and self.looks:
            for site in self.sites.values():
                site.step_ended()
        return found

    def counted(self, collectives: int | None, *, in_window: bool = False) -> None:
        """Take note of a step of the script, which has ended."""
        if self.instead is None:
            self.num_steps += 1
            self.num_exchanging += bool(collectives)
        if in_window:
            self._window.append(self.last)
        if self._is_learning and collectives is not None:
            self._usual.append(collectives)

    def window(self) -> Issued:
        """Return what was exchanged in the steps of the window that ends, and begin another one."""
        window, steps, self._window = Issued(), self._window, []
        for step in steps:
            window.add(step)
        return window

    def warmup(self) -> Issued:
        """Return what the last steps exchanged while lines were learnt, as far as it was counted."""
        found = Issued(collectives=0)
        for collectives in self._usual[NOT_USUAL:][-MOST_PERIOD:]:
            found.add(Issued(steps=1, collectives=collectives))
        return found

    def period(self) -> int:
        """Return after how many steps what is exchanged repeats itself; 1 where no rhythm is to be seen."""
        usual = self._usual[NOT_USUAL:]
        for period in range(1, min(MOST_PERIOD, len(usual) // 2) + 1):
            if all(a == b for a, b in zip(usual, usual[period:], strict=False)):
                return period
        return 1

    def _sequence_numbers(self) -> int:
        groups = list(self._groups)
        try:
            if len(groups) == 1 and self._has_others:
                return int(_sequence_number(groups[0]))  # it is the group of all ranks, who are as many as before
            shared = [group for group in groups if group.size() > 1]
            self._has_others = bool(shared)
            return sum(map(_sequence_number, shared or groups))
        except RuntimeError:  # a backend that counts none
            self.is_known = False
            return 0


def _caller() -> tuple[CodeType, int]:
    """Return the line, the user's or a library's, that calls a function of torch.distributed."""
    frame = sys._getframe(3)
    while frame.f_code.co_filename.endswith(_INTERNAL) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lineno


def _size(value: Any) -> int:
    """Return the elements of a tensor, or of those in nested lists; called for every collective."""
    if isinstance(value, torch.Tensor):
        return value.numel()
    return sum(map(_size, value)) if isinstance(value, (list, tuple)) else 0


def _num_bytes(value: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in structure.tensors(value))


def _stays(group: dist.ProcessGroup, *args: Any) -> None:
    """Leave what is there: the part of this rank."""


def _gather(_: dist.ProcessGroup, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor]) -> None:
    for places, mine in zip(outputs, inputs, strict=True):
        _fill(places, mine)


def _gather_coalesced(
    _: dist.ProcessGroup, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor]
) -> None:
    for of_rank in outputs:
        for place, mine in zip(of_rank, inputs, strict=True):
            _fill([place], mine)


def _gather_single(group: dist.ProcessGroup, output: torch.Tensor, mine: torch.Tensor) -> None:
    parts = output.view(group.size(), -1)
    # The rank's own part is there already where torch gathers in place.
    _fill([part for part in parts if part.data_ptr() != mine.data_ptr()], mine.reshape(-1))


def _gather_singles(group: dist.ProcessGroup, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    for output, mine in zip(outputs, inputs, strict=True):
        _gather_single(group, output, mine)


def _fill(places: Sequence[torch.Tensor], mine: torch.Tensor) -> None:
    for place in places:
        if place.numel() == mine.numel():
            place.copy_(mine.reshape(place.shape))
        else:  # ranks have parts of several sizes
            place.zero_()


def _scatter(
    group: dist.ProcessGroup, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]]
) -> None:
    for output, parts in zip(outputs, inputs, strict=True):
        output.copy_(parts[group.rank()])


def _scatter_single(group: dist.ProcessGroup, output: torch.Tensor, whole: torch.Tensor) -> None:
    output.copy_(whole.view(group.size(), -1)[group.rank()].view_as(output))


def _scatter_singles(group: dist.ProcessGroup, outputs: Sequence[torch.Tensor], wholes: Sequence[torch.Tensor]) -> None:
    for output, whole in zip(outputs, wholes, strict=True):
        _scatter_single(group, output, whole)


# What a method of torch's ProcessGroup would leave in a rank's tensors, had all other ranks what this one has: copies
# without a network. Left out altogether, the memory that a gather fills would keep whatever lay there, and training
# turn to NaN. A sum is left as this rank's own part: optimizers cost the same, whatever the values.
# By name in this and in older versions; what is not here is never left out.
LOCAL_COPIES: dict[str, Callable[..., None]] = {
    "allreduce": _stays,
    "allreduce_coalesced": _stays,
    "broadcast": _stays,
    "reduce": _stays,
    "allgather": _gather,
    "allgather_coalesced": _gather_coalesced,
    "_allgather_base": _gather_single,
    "all_gather_single": _gather_single,
    "all_gather_single_coalesced": _gather_singles,
    "allgather_into_tensor_coalesced": _gather_singles,
    "reduce_scatter": _scatter,
    "_reduce_scatter_base": _scatter_single,
    "reduce_scatter_single": _scatter_single,
    "reduce_scatter_single_coalesced": _scatter_singles,
    "reduce_scatter_tensor_coalesced": _scatter_singles,
}
