"""FSDP's collectives without a network: what a rank would receive is copied from its own shard.

Left out altogether, the memory that a gather fills would keep whatever lay there, and training turn to NaN.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter


class LocalAllGather(DefaultAllGather):
    """Fills the place of every rank with this rank's shard."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,  # noqa: ARG002 - torch's signature
    ) -> None:
        """Copy, in the stream in which the collective would run; there is nothing to wait for."""
        for rank, place in enumerate(output_tensor.chunk(group.size())):
            if rank != group.rank():  # its own part is there: torch gathers in place
                place.copy_(input_tensor)


class LocalReduceScatter(DefaultReduceScatter):
    """Takes this rank's part of its own gradients for the sum of all ranks'."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,  # noqa: ARG002
        async_op: bool = False,  # noqa: ARG002
    ) -> None:
        """Copy, in the stream in which the collective would run; there is nothing to wait for."""
        output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()])


def communicate(root: nn.Module, *, on: bool) -> None:
    """Have a sharded module and those inside of it use torch's own collectives, or the local ones.

    What an evaluation left gathered is let go of: it was gathered the other way.
    """
    gather, scatter = (DefaultAllGather(), DefaultReduceScatter()) if on else (LocalAllGather(), LocalReduceScatter())
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(gather)
            module.set_custom_reduce_scatter(scatter)
            module.reshard()
