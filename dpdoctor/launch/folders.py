"""The directories in which a script lives and runs, before and after a launch: what changed in them is told.

No wall stands everywhere, and none guards modes and times; nothing is missed here, but where there is too much to see.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from dpdoctor import rundir
from dpdoctor.records import Written

# More is not looked through: nobody is to wait for it.
MOST_ENTRIES, MOST_S = 20_000, 2.0
# What programs keep in them for themselves is not looked through; that they are there is seen.
_NOT_ENTERED = frozenset((".git", ".venv", "node_modules"))
# Python makes them as it likes.
_PASSED_OVER = "__pycache__"


class Folders(msgspec.Struct, frozen=True):
    """What lay there at one moment: of each path what it is, its size, its times and its mode.

    `unknown`: why nothing is known of it.
    """

    entries: dict[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    unknown: str = ""

    def changed_since(self, before: Folders) -> tuple[Written, ...]:
        """Return what is new, changed or gone, ordered by path; of directories what they hold does not count."""
        return tuple(
            Written(path=path, change=change, num_bytes=self.entries[path][0] if path in self.entries else 0)
            for path in sorted(self.entries.keys() | before.entries.keys())
            if (change := _change(before.entries.get(path), self.entries.get(path)))
        )


def _change(before: tuple[int, ...] | None, now: tuple[int, ...] | None) -> str:
    if before == now:
        return ""
    return "new" if before is None else "removed" if now is None else "changed"


def look(homes: Iterable[Path]) -> Folders:
    """Return what lies in these directories, run directories and what this process itself prints to left out."""
    printed = {_identity(os.fstat(descriptor)) for descriptor in (1, 2) if _is_open(descriptor)}
    entries: dict[str, tuple[int, ...]] = {}
    deadline = time.monotonic() + MOST_S
    for home in homes:
        for path, found in _below(str(home)):
            if len(entries) == MOST_ENTRIES or time.monotonic() > deadline:
                return Folders(unknown=f"{home} holds too much to look through")
            if _identity(found) not in printed:
                entries[path] = _facts(found)
    return Folders(entries)


def _below(directory: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what a directory holds, those in it included, nearest first; links are not followed."""
    waiting = [directory]
    while waiting:
        inside = [entry for place in waiting for entry in _entries(place)]
        waiting = []
        for entry in inside:
            found = _stat(entry)
            if found is not None and entry.name != _PASSED_OVER:
                yield entry.path, found
                if stat.S_ISDIR(found.st_mode) and entry.name not in _NOT_ENTERED:
                    waiting.append(entry.path)


def _entries(directory: str) -> Collection[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            entries = list(found)
    except OSError:
        return ()
    may_be_run = any(entry.name == rundir.HEADER for entry in entries)
    return () if may_be_run and rundir.is_run(Path(directory)) else entries


def _stat(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        return None


def _facts(found: os.stat_result) -> tuple[int, ...]:
    if stat.S_ISDIR(found.st_mode):
        return (0, found.st_mode, found.st_ino)
    return (found.st_size, found.st_mode, found.st_ino, found.st_mtime_ns)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
