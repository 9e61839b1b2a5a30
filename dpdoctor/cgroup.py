"""What the cgroups of this process, version 1 or 2, allow it: cores, CPU time that quotas hold back, memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

_MEMBERSHIP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
# Of version 2 and of version 1: the limit, what is used, and what of that is no more than a copy of the disk.
_MEMORY = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
# Of version 2 and of version 1: CPU time that may be used in a period, and the period.
_CPU_QUOTAS = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
# What version 1 tells where there is none is near this.
_NO_LIMIT = 2**62


class Throttling(msgspec.Struct, frozen=True, kw_only=True):
    """Since the cgroup began: quota periods, those in which it was used up, seconds that processes were held back."""

    num_periods: int
    num_throttled: int
    throttled_s: float


def cores() -> int:
    """Return the cores that this process may use: its affinity, further limited by the tightest CPU quota."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quotas = [_quota(directory) for directory in _directories("cpu")]
    except OSError:
        return allowed
    return max(1, min([allowed, *(math.ceil(quota) for quota in quotas if quota is not None)]))


def _quota(directory: Path) -> float | None:
    """Return the cores whose time a cgroup may use up; None where it has no quota or does not say."""
    for names in _CPU_QUOTAS:
        try:
            quota, period = map(int, " ".join((directory / name).read_text() for name in names).split())
        except (OSError, ValueError):  # not this version, or "max": no quota
            continue
        if quota > 0:  # version 1 writes -1 for none
            return quota / period
    return None


def throttling() -> Throttling:
    """Return what the cgroup did that held back most: this process's own or one around it.

    Raises:
        ValueError: no cgroup counts it: none has the cpu controller.
        OSError: the kernel does not tell the process's cgroups.
    """
    found = [level for directory in _directories("cpu") if (level := _read(directory / "cpu.stat")) is not None]
    if not found:
        raise ValueError("no cgroup of this process counts what its CPU quota holds back")
    return max(found, key=lambda level: level.throttled_s)


def memory_left() -> int | None:
    """Return the bytes that the tightest limit leaves, with what the kernel gives back at once; None: no limit."""
    try:
        left = [_left(directory) for directory in _directories("memory")]
    except OSError:
        return None
    return max(0, min(limited)) if (limited := [each for each in left if each is not None]) else None


def _left(directory: Path) -> int | None:
    """Return what a cgroup leaves of its limit; None where it has none or does not say."""
    for limit, used, reclaimable in _MEMORY:
        try:
            most, taken = ((directory / name).read_text().strip() for name in (limit, used))
            stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
        except OSError:
            continue
        if most.isdigit() and int(most) < _NO_LIMIT:
            return int(most) - int(taken) + int(stat.get(reclaimable, 0))
    return None


def _directories(controller: str) -> Iterator[Path]:
    """Yield the cgroups of a controller from the innermost to the outermost.

    In a container the path may be the host's, which is not there; the outermost, its own mount, is.
    """
    for line in _MEMBERSHIP.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = _MOUNT / controllers
            innermost = root / path.strip("/")
            yield from (directory for directory in (innermost, *innermost.parents) if directory.is_relative_to(root))


def _read(stat: Path) -> Throttling | None:
    """Return what a cpu.stat says of throttling; None where it does not. Version 1 counts in ns, version 2 in us."""
    try:
        values = dict(line.split() for line in stat.read_text().splitlines())
    except OSError:
        return None
    for name, per_s in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
        if name in values:
            return Throttling(
                num_periods=int(values["nr_periods"]),
                num_throttled=int(values["nr_throttled"]),
                throttled_s=int(values[name]) / per_s,
            )
    return None
