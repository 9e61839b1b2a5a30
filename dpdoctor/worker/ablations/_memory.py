"""How much more host memory there is to use."""

from __future__ import annotations

import psutil

from dpdoctor import cgroup


def available_bytes() -> int:
    """Return the bytes that may still be taken without swapping, of the machine or of this process's cgroups."""
    free, left = int(psutil.virtual_memory().available), cgroup.memory_left()
    return free if left is None else min(free, left)
