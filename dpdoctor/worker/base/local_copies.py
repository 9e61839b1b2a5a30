"""What a collective would leave in a rank's tensors, had all other ranks what this one has: copies without a network.

Left out altogether, the memory that a gather fills would keep whatever lay there, and training turn to NaN. A sum is
left as this rank's own part: optimizers cost the same, whatever the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

Group = dist.ProcessGroup


def _stays(group: Group, *args: Any) -> None:
    """Leave what is there: the part of this rank."""


def _gather(_: Group, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor]) -> None:
    for places, mine in zip(outputs, inputs, strict=True):
        _fill(places, mine)


def _gather_coalesced(_: Group, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor]) -> None:
    for of_rank in outputs:
        for place, mine in zip(of_rank, inputs, strict=True):
            _fill([place], mine)


def _gather_single(group: Group, output: torch.Tensor, mine: torch.Tensor) -> None:
    parts = output.view(group.size(), -1)
    # The rank's own part is there already where torch gathers in place.
    _fill([part for part in parts if part.data_ptr() != mine.data_ptr()], mine.reshape(-1))


def _gather_singles(group: Group, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    for output, mine in zip(outputs, inputs, strict=True):
        _gather_single(group, output, mine)


def _fill(places: Sequence[torch.Tensor], mine: torch.Tensor) -> None:
    for place in places:
        if place.numel() == mine.numel():
            place.copy_(mine.reshape(place.shape))
        else:  # ranks have parts of several sizes
            place.zero_()


def _scatter(group: Group, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]]) -> None:
    for output, parts in zip(outputs, inputs, strict=True):
        output.copy_(parts[group.rank()])


def _scatter_single(group: Group, output: torch.Tensor, whole: torch.Tensor) -> None:
    output.copy_(whole.view(group.size(), -1)[group.rank()].view_as(output))


def _scatter_singles(group: Group, outputs: Sequence[torch.Tensor], wholes: Sequence[torch.Tensor]) -> None:
    for output, whole in zip(outputs, wholes, strict=True):
        _scatter_single(group, output, whole)


# Of torch's ProcessGroup, by name in this and in older versions; what is not here is never left out.
BY_METHOD: dict[str, Callable[..., None]] = {
    "allreduce": _stays,
    "allreduce_coalesced": _stays,
    "broadcast": _stays,
    "reduce": _stays,
    "allgather": _gather,
    "allgather_coalesced": _gather_coalesced,
    "_allgather_base": _gather_single,
    "all_gather_single": _gather_single,
    "all_gather_single_coalesced": _gather_singles,
    "allgather_into_tensor_coalesced": _gather_singles,
    "reduce_scatter": _scatter,
    "_reduce_scatter_base": _scatter_single,
    "reduce_scatter_single": _scatter_single,
    "reduce_scatter_single_coalesced": _scatter_singles,
    "reduce_scatter_tensor_coalesced": _scatter_singles,
}
