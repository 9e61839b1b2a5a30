"""What one step of the script costs between host and device: calls that wait for the device, bytes that go to it."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from dpdoctor import redact
from dpdoctor.records import HostSync
from dpdoctor.worker.base import lines
from dpdoctor.worker.base.patches import Patches

# What brings a value of a tensor, or a shape that depends on values, to the host.
_METHODS = (
    *("item", "tolist", "cpu", "numpy", "nonzero", "masked_select"),
    *("__bool__", "__float__", "__int__", "__index__", "__complex__", "__format__", "__repr__"),
)
_FUNCTIONS = ("nonzero", "masked_select")
# What brings a tensor to a device.
_COPYING = ("to", "cuda", "copy_")
_OWN = f"{Path(__file__).parents[2]}/"
_TORCH = f"{Path(torch.__file__).parent}/"
# Tensors lie on the host there in a script that has a device, too: a data set's, and the optimizers' counts of steps.
_LOADING = f"{_TORCH}utils/data/"
_OPTIMIZERS = f"{_TORCH}optim/"
# Asks in each step whether gradients overflowed, whatever the script asks for.
_SCALER, OF_SCALER = torch.amp.GradScaler._maybe_opt_step.__code__, "GradScaler.step"


class HostSyncs:
    """Counts from `start` to `stop` the calls of the thread that starts it that wait for the device, each at its line.

    Only the outermost call counts, and what torch calls by itself counts once for each call of the script into torch.
    With a device, calls on its tensors count. Without one, all that is asked of a tensor counts, but not where torch
    keeps tensors on the host anyway, nor a second time what `cpu` has brought.
    """

    def __init__(self) -> None:
        self._patches = Patches()
        self._thread = 0
        self._inside = False
        self._has_device = torch.cuda.is_available()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._brought: torch.Tensor | None = None
        self._last_entry: FrameType | None = None

    def start(self) -> None:
        """Begin to count the calls of this thread."""
        self._thread = threading.get_ident()
        for name in _METHODS:
            self._replace(torch.Tensor, name)
        for name in _FUNCTIONS:
            self._replace(torch, name)
        for owner in (torch.cuda, torch.cuda.Event, torch.cuda.Stream):
            self._replace(owner, "synchronize", whole_device=True)
        self._replace(torch.Tensor, "__getitem__", label="[mask]", concerns=_selects_by_values)
        if self._has_device:
            self._replace(torch.Tensor, "to", concerns=_goes_to_host)

    def stop(self) -> None:
        """Count no more: nothing is left of it in torch."""
        self._patches.undo()
        # They hold what the step computed.
        self._brought = self._last_entry = None

    def found(self) -> tuple[HostSync, ...]:
        """Return what was counted, in the order of the first calls."""
        return tuple(
            HostSync(call=call, line=line, count=count, code=redact.text(lines.source(line)))
            for (call, line), count in self._counts.items()
        )

    def _replace(
        self,
        owner: Any,
        name: str,
        *,
        label: str = "",
        whole_device: bool = False,
        concerns: Callable[..., bool] = lambda *_, **__: True,
    ) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            if self._inside or threading.get_ident() != self._thread or not concerns(*args, **options):
                return original(*args, **options)
            self._inside = True
            try:
                if whole_device or self._waits(name, args[0] if args else options["input"]):
                    self._count(label or name.strip("_"))
                result = original(*args, **options)
            finally:
                self._inside = False
            if name == "cpu":
                self._brought = result
            return result

        self._patches.replace(owner, name, call)

    def _waits(self, name: str, tensor: torch.Tensor) -> bool:
        """Return whether a value of the tensor would have to be waited for, as far as that can be known here."""
        if self._has_device:
            return tensor.is_cuda
        return name == "cpu" or tensor is not self._brought

    def _count(self, name: str) -> None:
        """Count one call, unless it is our own or one that torch makes by itself and that is not the first."""
        stack = _stack(sys._getframe(2))
        if _file(stack[0]).startswith(_OWN) or (not self._has_device and _is_of_host(stack)):
            return
        entry = None
        for frame in itertools.takewhile(_is_torchs, stack):
            entry, name = frame, OF_SCALER if frame.f_code is _SCALER else name
        if entry is not None and entry is self._last_entry:
            return
        self._last_entry = entry
        self._counts[name, lines.caller()] += 1


def _stack(frame: FrameType | None) -> list[FrameType]:
    stack = []
    while frame is not None:
        stack.append(frame)
        frame = frame.f_back
    return stack


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _is_torchs(frame: FrameType) -> bool:
    return _file(frame).startswith(_TORCH)


def _is_of_host(stack: Sequence[FrameType]) -> bool:
    """Return whether a call is one of loading a batch, or of an optimizer's own."""
    own = itertools.takewhile(_is_torchs, stack)
    return any(_file(f).startswith(_LOADING) for f in stack) or any(_file(f).startswith(_OPTIMIZERS) for f in own)


def _selects_by_values(_: torch.Tensor, index: Any) -> bool:
    """Return whether `tensor[index]` has a shape that depends on values: it is selected by a mask."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8) for part in parts)


def _goes_to_host(tensor: torch.Tensor, *args: Any, **options: Any) -> bool:
    """Return whether `tensor.to(...)` copies it from a device to the host and waits for the copy."""
    targets = [target for target in (*args, options.get("device")) if isinstance(target, (str, torch.device))]
    return tensor.is_cuda and any(str(target) == "cpu" for target in targets)


class DeviceCopies:
    """Adds up from `start` to `stop` what the thread that starts it copies from the host; modules are moved by `to`.

    `has_device`: whether there is anything to copy to.
    """

    def __init__(self, *, has_device: bool) -> None:
        self._has_device = has_device
        self._patches = Patches()
        self._thread = 0
        self._num_bytes = 0

    def start(self) -> None:
        """Begin to count the copies of this thread."""
        self._thread = threading.get_ident()
        if self._has_device:
            for name in _COPYING:
                self._replace(name)

    def stop(self) -> None:
        """Count no more: nothing is left of it in torch."""
        self._patches.undo()

    @property
    def num_bytes(self) -> int | None:
        """Return the bytes as they lay on the host; None without a device."""
        return self._num_bytes if self._has_device else None

    def _replace(self, name: str) -> None:
        original = getattr(torch.Tensor, name)

        @functools.wraps(original)
        def copy(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
            result = original(tensor, *args, **options)
            source = (args[0] if args else options["other"]) if name == "copy_" else tensor
            if threading.get_ident() == self._thread and _crosses(source, result):
                self._num_bytes += source.numel() * source.element_size()
            return result

        self._patches.replace(torch.Tensor, name, copy)


def _crosses(source: torch.Tensor, result: torch.Tensor) -> bool:
    return source.device.type == "cpu" != result.device.type
