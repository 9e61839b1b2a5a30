"""What nn.DataParallel does with a module: the replicas it makes, whether they run, what they lose and return."""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

# Forwards to look back on; a step of more micro-batches is judged on its last ones.
MOST_CALLS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One training forward: the replicas that were made for it, one for each part of the batch, and those that ran."""

    made: int
    entered: int


class Parallel:
    """One nn.DataParallel, to be called in its place; `calls` are its latest training forwards.

    The first replica of the first forward is looked at closely, and `warn` is told what makes training differ from one
    device's. `returns_scalar`: its output holds a tensor without dimension, of which the script gets one per device.
    """

    def __init__(self, wrapper: nn.DataParallel[nn.Module], warn: Callable[[str], None]) -> None:
        self.wrapper = wrapper
        self.device_ids: tuple[int, ...] = tuple(wrapper.device_ids)
        self.calls: deque[Call] = deque(maxlen=MOST_CALLS)
        self.returns_scalar = False
        self._warn = warn
        self._made = 0
        self._entered: set[int] = set()
        self._autocast: torch.dtype | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._made, self._entered = 0, set()
        self._autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        result = self.wrapper(*args, **kwargs)
        self.calls.append(Call(made=self._made, entered=len(self._entered)))
        return result

    def watch(self, replicas: Sequence[nn.Module]) -> None:
        """See the forward of each replica that torch has just made.

        torch copies the module's `__dict__` into them, and with it the redirect of the call, which would lead them back
        here. Their new call must not hold them: in a cycle, copies of the parameters would wait for the collector.
        """
        self._made = len(replicas)
        for number, replica in enumerate(replicas):
            replica._compiled_call_impl = functools.partial(self._enter, number, weakref.ref(replica))

    def _enter(self, number: int, reference: weakref.ref[nn.Module], /, *args: Any, **kwargs: Any) -> Any:
        """Run a replica's forward, in the thread that torch gave it."""
        replica = reference()
        assert replica is not None, "torch holds a replica for as long as it calls it"
        # A forward may call its own module again, as that of a tree does.
        is_again = number in self._entered
        self._entered.add(number)
        if self.calls or number or is_again:
            return replica._call_impl(*args, **kwargs)
        before = _attributes(replica)
        result = replica._call_impl(*args, **kwargs)
        self.returns_scalar = _holds_scalar(result)
        for remark in (self._other_type(), _lost(replica, before), _batch_norm(self.wrapper), self._scalar()):
            if remark:
                self._warn(remark)
        return result

    def _other_type(self) -> str:
        """Return what autocast does otherwise in a replica's thread: its type belongs to the thread that set it."""
        wanted, found = self._autocast, torch.get_autocast_dtype("cuda")
        if wanted in {None, found}:
            return ""
        wanted_name, found_name = (str(dtype).removeprefix("torch.") for dtype in (wanted, found))
        return f"autocast to {wanted_name} becomes {found_name} in the replicas of dp, unless forward itself enters it"

    def _scalar(self) -> str:
        if not self.returns_scalar:
            return ""
        return "forward returns a scalar, of which the script gets one per device in dp: a sum of them is too large"


def _batch_norm(wrapper: nn.DataParallel[nn.Module]) -> str:
    if not any(isinstance(part, _BatchNorm) and part.training for part in wrapper.modules()):
        return ""
    return "BatchNorm sees each device's part of the batch alone in dp, and keeps the statistics of the first"


def _attributes(module: nn.Module) -> list[dict[str, Any]]:
    """Return what each part of a module holds, buffers included."""
    return [{**vars(part), **part._buffers} for part in module.modules()]


def _lost(replica: nn.Module, before: list[dict[str, Any]]) -> str:
    """Return which attributes a forward has set: the replica is thrown away, and they with it."""
    names = [
        f"{type(part).__name__}.{name}"
        for part, held, holds in zip(replica.modules(), before, _attributes(replica), strict=True)
        for name, value in holds.items()
        if name not in held or held[name] is not value
    ]
    return f"forward sets {', '.join(dict.fromkeys(names))}, which is lost with the replicas of dp" if names else ""


def _holds_scalar(output: Any) -> bool:
    if isinstance(output, torch.Tensor):
        return output.dim() == 0
    if isinstance(output, dict):
        return any(map(_holds_scalar, output.values()))
    return isinstance(output, (list, tuple)) and any(map(_holds_scalar, output))
