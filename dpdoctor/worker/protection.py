"""What keeps the user's files from the script: walls of the kernel's, where one can stand; Python's functions always.

To be raised before torch is imported: that starts threads, which a wall would not hold.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dpdoctor import rundir
from dpdoctor.spec import WorkerTask
from dpdoctor.worker import landlock, wall
from dpdoctor.worker.overlay import territory

NAMED = "dpdoctor lets compiled code and programs write no file of yours; --allow-writes does"
# CUDA has it made by nvidia-modprobe, a program with more rights than its caller: behind a wall nobody gets any.
UNIFIED_MEMORY = Path("/dev/nvidia-uvm")
UNLOADED = "a part of NVIDIA's driver is not loaded yet, and could not be loaded behind a wall"
# What libraries say that were refused, and C's own words.
_REFUSED = re.compile(
    r"(?i)permission denied|read-?only (?:file ?system|database)|error opening|(?:unable|failed) to open|cannot open"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """What protects the user's files; `by` is RankRecord's protected_by, `reason` why it is no wall of the kernel's."""

    by: str
    reason: str = ""

    def hint(self, error: BaseException) -> str:
        """Return what a script must be told that raised an error because it was refused a file; empty: it was not."""
        if self.by != "landlock":
            return ""
        seen: list[BaseException] = []
        while error is not None and error not in seen:
            if _REFUSED.search(str(error)):
                return f"; {NAMED}"
            seen.append(error)
            error = error.__cause__ or error.__context__  # type: ignore[assignment]
        return ""


PYTHON = Protection(by="python")


def protect(task: WorkerTask) -> Protection:
    """Put up what can stand around this process and all that it starts."""
    if task.spec.allow_writes:
        return Protection(by="")
    if task.bare:
        # Nothing in the script may be replaced: it is what the others are held against.
        scratch = rundir.rank_dir(Path(task.directory), 0) / rundir.OVERLAY
        scratch.mkdir(parents=True, exist_ok=True)
        if wall.stand(scratch, opened=Path(task.directory), homes=task.spec.homes) is None:
            return Protection(by="kernel")
    free = list(_free(Path(task.directory)))
    inside = next((home for home in task.spec.homes if any(_holds(path, home) for path in free)), None)
    if inside is not None:
        return Protection(by="python", reason=f"{inside} lies in a directory for temporary files or caches")
    if task.spec.devices and not UNIFIED_MEMORY.exists():
        return Protection(by="python", reason=UNLOADED)
    reason = landlock.stand(free)
    return Protection(by="python", reason=reason) if reason else Protection(by="landlock")


def _free(own: Path) -> Iterator[Path]:
    """Yield where compiled code may write: where nothing of the user's lies, and devices are found."""
    yield own
    yield from map(Path, territory.KERNEL)
    yield from map(Path, territory.temporary())
    yield from map(Path, territory.caches())


def _holds(directory: Path, path: Path) -> bool:
    return os.path.realpath(path).startswith(f"{os.path.realpath(directory)}{os.sep}") or directory == path
