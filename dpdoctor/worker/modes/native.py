"""native: a script that distributes itself, or its own launcher, is observed as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dpdoctor import units
from dpdoctor.records import PARAMETERS_EQUAL, Check
from dpdoctor.worker.base.mode import Evidence, Mode, WrapOptions

if TYPE_CHECKING:
    from torch import nn


class Native(Mode):
    """Ranks that the script, or a launcher of its own, starts; nothing converted."""

    communicates = only_observes = True
    routes_methods = True

    def convert(self, module: nn.Module, how: WrapOptions) -> Callable[..., Any]:  # noqa: ARG002
        """Return the module's own forward call, hooks included."""
        return module._call_impl

    def checks(self, evidence: Evidence) -> list[Check]:
        """Return what was seen: nothing was converted that could fail."""
        return [*super().checks(evidence), *_alike(evidence)]


def _alike(evidence: Evidence) -> list[Check]:
    """Return whether the ranks hold the same parameters, which those of sharded ones need not."""
    name, num_ranks = PARAMETERS_EQUAL, len(evidence.checksums)
    if num_ranks == 1:
        return []
    if len(set(evidence.checksums)) == 1:
        text = f"parameters are equal, bit for bit, on {units.count(num_ranks, 'rank')}"
        return [Check(name=name, ok=True, text=f"{text} after a step")]
    text = "parameters differ between ranks: they are sharded, or each rank trains a model of its own"
    return [Check(name=name, ok=None, text=text)]


MODE = Native()
