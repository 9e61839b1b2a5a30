"""What keeps the user's files from the script: walls of the kernel's, where one can stand; Python's functions always.

To be raised before torch is imported: that starts threads, which a wall would not hold.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dpdoctor import rundir
from dpdoctor.spec import COPIES_IN_THE_WAY, OVERLAY_ALONE, OVERLAY_FULL, OVERLAY_IN_THE_WAY, RunSpec, WorkerTask
from dpdoctor.worker import wall
from dpdoctor.worker.copies import Copy, copies
from dpdoctor.worker.overlay import territory
from dpdoctor.worker.wall import NoWallError, Wall

NAMED = "dpdoctor lets compiled code and programs write no file of yours; --allow-writes does"
# What the script is told that an overlay's memory, or a rule of the kernel's for overlays, keeps from writing.
# CUDA has it made by nvidia-modprobe, a program with more rights than its caller: behind a wall nobody gets any.
UNIFIED_MEMORY = Path("/dev/nvidia-uvm")
UNLOADED = "a part of NVIDIA's driver is not loaded yet, and could not be loaded behind a wall"
# What libraries say that were refused, and C's own words.
_REFUSED = re.compile(
    r"(?i)permission denied|read-?only (?:file ?system|database)|error opening|(?:unable|failed) to open|cannot open"
)
# What a writer of large pieces leaves of a file system that is full.
_LEFT_OF_FULL = 0.001
_FULL = re.compile(r"(?i)no space left|disk is full|file write failed")
_OVERLAID = re.compile(r"(?i)cross-device link|value too large for defined|read-?only file ?system|resource busy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """What protects the user's files; `by` is RankRecord's protected_by, `reason` why it is no better one.

    `wall`: the overlay of the kernel's, where that stands; `homes`: directories that it lies over; `has_next`: another
    can take its place; `finds_copies`: of files, and cannot write where packages are installed.
    """

    by: str
    reason: str = ""
    wall: Wall | None = None
    homes: tuple[Path, ...] = ()
    has_next: bool = True
    finds_copies: bool = False

    def hint(self, error: BaseException) -> str:
        """Return what a script must be told that raised an error because of a wall; empty: it did not."""
        overlay = {_FULL: OVERLAY_FULL, _OVERLAID: OVERLAY_IN_THE_WAY}
        if not self.has_next:
            overlay = dict.fromkeys(overlay, OVERLAY_ALONE)
        hints = {"landlock": {_REFUSED: NAMED}, "kernel": overlay}.get(self.by, {})
        seen: list[BaseException] = []
        while error is not None and error not in seen:
            if self.finds_copies and isinstance(error, OSError):
                return f"; {COPIES_IN_THE_WAY}"
            for said, hint in hints.items():
                if said.search(str(error)):
                    return f"; {hint}"
            seen.append(error)
            error = error.__cause__ or error.__context__  # type: ignore[assignment]
        # C++ that writes may say anything, such as torch.save.
        return f"; {overlay[_FULL]}" if any(map(_is_full, self.homes)) else ""


def _is_full(home: Path) -> bool:
    """Return whether a directory's file system is full; an overlay tells that of its upper layer."""
    try:
        found = os.statvfs(home)
    except OSError:
        return False
    return bool(found.f_blocks and found.f_bavail <= found.f_blocks * _LEFT_OF_FULL)


PYTHON = Protection(by="python")
# What torch, Python and NCCL name in shared memory, which other processes of this job or another one use just now.
_EXCHANGED = ("torch_", "sem.", "pym-", "psm_", "mp-", "nccl-")


def protect(task: WorkerTask, rank: int) -> Protection:
    """Put up what can stand around this process and all that it starts."""
    if task.spec.allow_writes:
        return Protection(by="")
    if (no_wall := _no_wall(task.spec)) is not None:
        territory.make_caches()
        return Protection(by="python", reason=no_wall)
    no_overlay = task.spec.no_overlay or "--wall landlock was given"
    if task.spec.wall == "overlay":
        directory = Path(task.directory)
        place = rundir.rank_dir(directory, rank)
        copied = copies(task.spec.homes, place / rundir.COPIES, directory) if task.copied else ()
        try:
            stands = overlay(task, place, task.mode.world_size, copied, _installed(task) if task.copied else ())
            return Protection(by="kernel", wall=stands, homes=task.spec.homes, finds_copies=task.copied)
        except NoWallError as error:
            no_overlay = str(error)
    territory.make_caches()
    free = list(_free(Path(task.directory)))
    inside = next((home for home in task.spec.homes if any(_holds(path, home) for path in free)), None)
    if inside is not None:
        return Protection(
            by="python", reason=f"{no_overlay}; {inside} lies in a directory for temporary files or caches"
        )
    reason = wall.put_up_landlock(free)
    return Protection(by="python" if reason else "landlock", reason="; ".join(filter(None, (no_overlay, reason))))


def _no_wall(spec: RunSpec) -> str | None:
    """Return why no wall of the kernel's is tried; None: one is."""
    if spec.wall == "none":
        return "--wall none was given"
    return UNLOADED if spec.devices and not UNIFIED_MEMORY.exists() else None


def _installed(task: WorkerTask) -> set[Path]:
    """Return where Python and its packages are, of which torch may be a link to elsewhere, but for the script's."""
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    packages = [path for path in sys.path if path.endswith("-packages") and Path(path).is_dir()]
    found = {path.resolve() for path in (*map(Path, packages), Path(os.__file__).parent, Path(spec.origin).parent)}
    written = [path.resolve() for path in (*task.spec.homes, Path(task.directory))]
    return {path for path in found if not any(each.is_relative_to(path) for each in written)}


def overlay(
    task: WorkerTask, place: Path, walls: int = 1, copied: Iterable[Copy] = (), readable: Iterable[Path] = ()
) -> Wall:
    """Put an overlay of the kernel's around this process: one of so many, which has a place for its upper layers.

    Of what is `copied` the process finds the copies; what is `readable` is there itself, to be read.

    Raises:
        NoWallError: it cannot stand here.
    """
    scratch = place / rundir.OVERLAY
    scratch.mkdir(parents=True, exist_ok=True)
    lying = _not_exchanged(territory.in_shared_memory())
    # A copy, which the script would get when it opens it, no longer shows what others write there.
    used_by_others = _not_exchanged(territory.mapped_to_write()) if lying else []
    return wall.put_up_overlay(
        scratch,
        own=Path(task.directory),
        opened=[*map(Path, territory.caches()), *used_by_others],
        homes=task.spec.homes,
        lying=lying,
        walls=walls,
        copied=copied,
        readable=readable,
    )


def _not_exchanged(names: Iterable[str]) -> list[Path]:
    """Return the paths of what lies in shared memory, but for what bears a name of torch's, Python's or NCCL's."""
    return [Path(territory.SHARED_MEMORY, name) for name in names if not name.startswith(_EXCHANGED)]


def _free(own: Path) -> Iterator[Path]:
    """Yield where compiled code may write: where nothing of the user's lies, and devices are found."""
    yield own
    yield from map(Path, territory.KERNEL)
    yield from map(Path, territory.temporary())
    yield from map(Path, territory.caches())


def _holds(directory: Path, path: Path) -> bool:
    return os.path.realpath(path).startswith(f"{os.path.realpath(directory)}{os.sep}") or directory == path
