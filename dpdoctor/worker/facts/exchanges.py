"""What a script that distributes itself exchanges: collectives per step, how long the host is in them, whose they are.

Calls that Python makes are seen one by one; those that torch's reducer makes by itself are only counted.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from dpdoctor.worker import lines
from dpdoctor.worker.patches import Patches
from dpdoctor.worker.timing.phases import BACKWARD, COMMUNICATION, PhaseClock

# Methods of torch's ProcessGroup, by which every collective of torch.distributed goes.
_OPERATIONS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "send": "send",
    "recv": "recv",
    "barrier": "barrier",
}
# Where torch.distributed's own functions are; who called them lies behind.
_INTERNAL = ("distributed_c10d.py", "c10d_logger.py")


class Call(NamedTuple):
    """One call of the script's own: where, what, how many bytes, and whether a backward pass was going on."""

    line: str
    operation: str
    num_bytes: int
    in_backward: bool


class Exchanges:
    """Counts and times collectives from step to step; `calls` are the script's own while `is_on`, `kinds` all of them.

    Attributes:
        num_steps: that were counted; `num_exchanging` of them exchanged something.
        is_known: whether torch tells how many collectives there were.
    """

    def __init__(self, phases: PhaseClock) -> None:
        self._phases = phases
        self._issued = 0
        self.is_on = False
        self.is_known = True
        self.calls: list[Call] = []
        self.kinds: Counter[str] = Counter()
        self.num_steps = self.num_exchanging = 0

    def watch(self, patches: Patches) -> None:
        """See the calls of every group, and the waits for them."""
        # What inspect or getattr gives is bound, and put back it would break every later call.
        methods = vars(dist.ProcessGroup)
        for name, operation in _OPERATIONS.items():
            if name in methods:
                patches.replace(dist.ProcessGroup, name, self._timed(methods[name], operation))
        patches.replace(dist.Work, "wait", self._timed(vars(dist.Work)["wait"], None))
        self._issued = self._sequence_numbers()
        self._phases.has_communication = True

    def _timed(self, original: Callable[..., Any], operation: str | None) -> Callable[..., Any]:
        def timed(subject: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_on and operation is not None and not self._phases.is_elsewhere():
                self._note(operation, args)
            depth = self._phases.push(COMMUNICATION)
            try:
                return original(subject, *args, **kwargs)
            finally:
                self._phases.pop(depth)

        return functools.wraps(original)(timed) if hasattr(original, "__name__") else timed

    def _note(self, operation: str, args: tuple[Any, ...]) -> None:
        self.kinds[operation] += 1
        line = _users_line()
        if line:
            num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(args[:1]))
            self.calls.append(Call(line, operation, num_bytes, self._phases.is_in(BACKWARD)))

    def lap(self) -> int | None:
        """End a step: return the collectives that were issued in it; None: not known."""
        issued, before = self._sequence_numbers(), self._issued
        self._issued = issued
        # A group that the script destroyed took its number with it.
        return max(0, issued - before) if self.is_known else None

    def counted(self, collectives: int | None) -> None:
        """Take note of a step of the script."""
        self.num_steps += 1
        self.num_exchanging += bool(collectives)

    def _sequence_numbers(self) -> int:
        try:
            groups: Iterable[Any] = distributed_c10d._world.pg_map
            return sum(int(group._get_sequence_number_for_group()) for group in groups)
        except RuntimeError:  # a backend that counts none
            self.is_known = False
            return 0


def _users_line() -> str:
    """Return the user's line that calls a function of torch.distributed; empty: a library does."""
    frame = sys._getframe(3)
    while frame is not None and frame.f_code.co_filename.endswith(_INTERNAL):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or not lines.is_users(frame.f_code.co_filename):
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
