"""Whether the script already mixes precisions: enters autocast, or scales its loss."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from dpdoctor.worker.base import lines
from dpdoctor.worker.base.patches import Patches


class Precision:
    """Remembers where autocast was first entered, and the scalers that took a step."""

    def __init__(self) -> None:
        self._line: str | None = None
        self._scalers: weakref.WeakSet[GradScaler] = weakref.WeakSet()

    def watch(self, patches: Patches) -> None:
        """See autocast entered and losses scaled from now on."""
        enter, scale = vars(torch.autocast)["__enter__"], vars(GradScaler)["scale"]

        @functools.wraps(enter)
        def entered(context: torch.autocast) -> Any:
            if self._line is None and context._enabled:
                self._line = lines.caller()
            return enter(context)

        @functools.wraps(scale)
        def scaled(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
            self._scalers.add(scaler)
            return scale(scaler, *args, **kwargs)

        patches.replace(torch.autocast, "__enter__", entered)
        patches.replace(GradScaler, "scale", scaled)

    def scalers(self) -> list[GradScaler]:
        """Return the script's scalers that are in use."""
        return [scaler for scaler in self._scalers if scaler.is_enabled()]

    def already(self) -> str | None:
        """Return how the script mixes precisions by itself; None: it does not."""
        if self._line is not None:
            return f"the script enters autocast itself ({self._line})"
        return "the script scales its loss with a GradScaler" if self.scalers() else None
