"""How much more host memory there is to use."""

from __future__ import annotations

from pathlib import Path

import psutil

# Of version 2 of cgroups and of version 1: the limit, what is used, and what of that the kernel gives back at once.
_CGROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_bytes() -> int:
    """Return the bytes that may still be taken without swapping, of the machine or of this process's cgroup."""
    free = int(psutil.virtual_memory().available)
    for folder, limit, used, reclaimable in _CGROUPS:
        try:
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # not this version, or "max": no limit
            continue
        return max(0, min(free, left + int(stat.get(reclaimable, 0))))
    return free
