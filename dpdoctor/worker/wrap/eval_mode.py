"""Which modules the script told to evaluate, as long as it is not known which of them it trains.

What a library tells a module is no evaluation of the script's: models are built in eval mode by some.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import Any

from torch import nn

from dpdoctor.worker.base import lines, structure
from dpdoctor.worker.base.patches import Patches


class EvalMode:
    """Sees between `watch` and `settle` what the script tells by `train` and `eval`, and so to all inside."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._told: dict[int, weakref.ref[nn.Module]] = {}
        self._is_inside = False

    def watch(self) -> None:
        """Begin to see what modules are told."""
        original = nn.Module.train

        @functools.wraps(original)
        def train(module: nn.Module, mode: bool = True) -> nn.Module:
            if self._is_inside:
                return original(module, mode)
            self._is_inside = True
            try:
                return original(module, mode)
            finally:
                self._is_inside = False
                if _is_scripts(module):
                    self._told[id(module)] = weakref.ref(module)

        self._patches.replace(nn.Module, "train", train)

    def settle(self) -> None:
        """See no more."""
        self._patches.restore(nn.Module, "train")
        self._told.clear()

    def holds(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Return whether each of these is a module's that is in eval mode now; False: there are none."""
        told = [module for reference in self._told.values() if (module := reference()) is not None]
        found = {id(p) for module in told if not module.training for p in structure.parameters(module)}
        held = {id(p) for p in parameters}
        return bool(held) and held <= found


def _is_scripts(module: nn.Module) -> bool:
    """Return whether the script itself told this module: by `eval` perhaps, or by what its class has in their place."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name in {"train", "eval"} and _first_of(frame) is module:
        frame = frame.f_back
    return frame is not None and lines.is_users(frame.f_code.co_filename)


def _first_of(frame: FrameType) -> Any:
    """Return what a running function was called with first."""
    with lines.local_variables(frame) as held:
        return held.get(next(iter(frame.f_code.co_varnames), ""))
