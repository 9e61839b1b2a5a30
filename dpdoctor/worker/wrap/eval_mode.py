"""Which modules the script told to evaluate, as long as it is not known which of them it trains."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable

from torch import nn

from dpdoctor.worker.base import modules
from dpdoctor.worker.base.patches import Patches


class EvalMode:
    """Sees `train` and `eval` of modules between `watch` and `settle`; of one inside of another the outer's is seen."""

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
                self._told[id(module)] = weakref.ref(module)

        self._patches.replace(nn.Module, "train", train)

    def settle(self) -> None:
        """See no more."""
        self._patches.restore(nn.Module, "train")
        self._told.clear()

    def holds(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Return whether each of these is a module's that is in eval mode now; False: there are none."""
        told = [module for reference in self._told.values() if (module := reference()) is not None]
        found = {id(p) for module in told if not module.training for p in modules.parameters(module)}
        held = {id(p) for p in parameters}
        return bool(held) and held <= found
