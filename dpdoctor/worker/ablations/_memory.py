"""How much more memory there is to use."""

from __future__ import annotations

import psutil
import torch

from dpdoctor import cgroup

# What an ablation takes must leave so much of the free memory to everybody else.
MARGIN = 1.25


def available_bytes() -> int:
    """Return the bytes that may still be taken without swapping, of the machine or of this process's cgroups."""
    free, left = int(psutil.virtual_memory().available), cgroup.memory_left()
    return free if left is None else min(free, left)


def available_on(device: torch.device) -> int:
    """Return the bytes of a GPU that stay free while this process takes as much as it took at most."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)
