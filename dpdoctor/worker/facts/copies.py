"""How many bytes the script copies to devices, counted in one step."""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch

from dpdoctor.worker.base.patches import Patches

_CALLS = ("to", "cuda", "copy_")


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
            for name in _CALLS:
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
