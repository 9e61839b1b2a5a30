"""ddp: torch's DistributedDataParallel, one process per device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dpdoctor import units
from dpdoctor.records import Check
from dpdoctor.worker.modes._base import Conversion, Evidence, Mode

if TYPE_CHECKING:
    from torch import nn


class DDP(Mode):
    """The public DistributedDataParallel with its defaults, as an author would write it."""

    summary = "DistributedDataParallel, one process per device"
    distributed = True
    needs_unused = True

    def convert(self, module: nn.Module, how: Conversion) -> Callable[..., Any]:
        """Return the wrapper; its constructor gives all ranks rank 0's parameters and buffers."""
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(module, find_unused_parameters=how.has_unused)

    def checks(self, evidence: Evidence) -> list[Check]:
        """Return whether the ranks hold one model and as many bytes were reduced as there are gradients."""
        return [*super().checks(evidence), _parameters_equal(evidence), _gradients_reduced(evidence)]


def _parameters_equal(evidence: Evidence) -> Check:
    name = "parameters equal"
    if len(set(evidence.checksums)) > 1:
        return Check(name=name, ok=False, text="gradients were not synchronised: parameters differ between ranks")
    if not evidence.moved:
        return Check(name=name, ok=None, text="parameters did not move yet, so that they are equal proves nothing")
    ranks = units.count(len(evidence.checksums), "rank")
    return Check(name=name, ok=True, text=f"parameters are equal, bit for bit, on {ranks} after they moved")


def _gradients_reduced(evidence: Evidence) -> Check:
    name = "gradients reduced"
    reduced = evidence.counters.collectives.get("all_reduce")
    num_bytes = reduced.num_bytes if reduced else 0
    text = f"{units.size(num_bytes)} all-reduced in a step that made {units.size(evidence.gradient_bytes)} of gradients"
    if num_bytes < evidence.gradient_bytes:
        return Check(name=name, ok=False, text=f"gradients were not synchronised: {text}")
    return Check(name=name, ok=True, text=text)


MODE = DDP()
