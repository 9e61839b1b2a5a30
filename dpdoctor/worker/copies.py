"""Copies of the directories in which a script lives, for a launch that is to find its files as fast as without a wall.

Large directories, such as data or an environment, are not copied: they are found behind the wall.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dpdoctor import rundir

# To copy as much takes well below a second.
MOST_FILES = 1_000
MOST_BYTES = 32_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A directory of the user's and where its copy lies; `left` are directories in it that are empty there."""

    of: Path
    at: Path
    left: tuple[str, ...]


def copies(homes: Iterable[Path], place: Path, own: Path) -> tuple[Copy, ...]:
    """Return copies of directories below `place`, in which `own` is a directory wherever that lies in one of them.

    One that lies in another is in that one's copy. Of one that cannot be read or written whole there is none, nor of
    one with a large file: scripts replace files, such as a checkpoint, and what is left is a mount, which cannot be.
    """
    resolved = sorted({home.resolve() for home in homes})
    outermost = [home for home in resolved if not any(other in home.parents for other in resolved)]
    found = (_copied(home, place / str(number), own.resolve()) for number, home in enumerate(outermost))
    return tuple(copy for copy in found if copy is not None)


def _copied(home: Path, at: Path, own: Path) -> Copy | None:
    left: list[str] = []
    try:
        device = home.stat().st_dev
        if device != own.stat().st_dev:  # another file system takes another time
            return None
        room = _Room(device)
        at.mkdir(parents=True)
        for entry in sorted(home.iterdir()):
            if rundir.is_run(entry):  # what earlier runs recorded no script reads
                continue
            if entry.is_symlink() or room.takes(entry):
                _copy(entry, at / entry.name)
            else:
                os.listdir(entry)  # noqa: PTH208 - a file raises NotADirectoryError
                (at / entry.name).mkdir()
                left.append(entry.name)
        shutil.copystat(home, at)
        if own.is_relative_to(home) and own.relative_to(home).parts[0] not in left:
            (at / own.relative_to(home)).mkdir(parents=True, exist_ok=True)
    except OSError:  # there is a large file, some of it is not this user's to read, or the disk is full
        shutil.rmtree(at, ignore_errors=True)
        return None
    return Copy(of=home, at=at, left=tuple(left))


def _copy(entry: Path, target: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.copytree(entry, target, symlinks=True, ignore=lambda inside, names: _runs(Path(inside), names))
    else:
        shutil.copy2(entry, target, follow_symlinks=False)


class _Room:
    """What may still be copied: files, directories and links of one device."""

    def __init__(self, device: int) -> None:
        self._device, self._files, self._bytes = device, MOST_FILES, MOST_BYTES

    def takes(self, entry: Path) -> bool:
        """Return whether there is room for a path and all that lies below it, which it takes from then on."""
        before = self._files, self._bytes
        if self._has_room(entry):
            return True
        self._files, self._bytes = before
        return False

    def _has_room(self, path: Path) -> bool:
        facts = path.lstat()
        kind = stat.S_IFMT(facts.st_mode)
        self._files -= 1
        if facts.st_dev != self._device or self._files < 0:
            return False
        if kind == stat.S_IFDIR:
            with os.scandir(path) as entries:
                return all(rundir.is_run(Path(entry)) or self._has_room(Path(entry)) for entry in entries)
        self._bytes -= facts.st_size
        return kind in {stat.S_IFREG, stat.S_IFLNK} and self._bytes >= 0


def _runs(directory: Path, names: Iterable[str]) -> set[str]:
    return {name for name in names if rundir.is_run(directory / name)}
