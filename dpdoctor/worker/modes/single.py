"""single: the script on one device, as it is. The baseline of every speedup."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dpdoctor.worker.base.mode import Mode, WrapOptions

if TYPE_CHECKING:
    from torch import nn


class Single(Mode):
    """One process, one device, nothing converted."""

    routes_methods = wraps_parts = True

    def convert(self, module: nn.Module, how: WrapOptions) -> Callable[..., Any]:  # noqa: ARG002
        """Return the module's own forward call, hooks included."""
        return module._call_impl


MODE = Single()
