"""What `os.scandir` gives for a directory that is in part in the overlay."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any


class Entry:
    """One name in a directory; as `os.DirEntry`, but every question goes to the disk."""

    __slots__ = ("_stat", "name", "path")

    def __init__(self, name: Any, path: Any, stat_of: Callable[..., os.stat_result]) -> None:
        self.name, self.path, self._stat = name, path, stat_of

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return what `os.stat` says."""
        return self._stat(self.path, follow_symlinks=follow_symlinks)

    def inode(self) -> int:
        """Return the inode of the entry itself."""
        return self.stat(follow_symlinks=False).st_ino

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is, or leads to, a directory."""
        return stat.S_ISDIR(self._mode(follow_symlinks=follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is, or leads to, a file."""
        return stat.S_ISREG(self._mode(follow_symlinks=follow_symlinks))

    def is_symlink(self) -> bool:
        """Return whether it is a link."""
        return stat.S_ISLNK(self._mode(follow_symlinks=False))

    def is_junction(self) -> bool:
        """Return False: there are none on Linux."""
        return False

    def _mode(self, *, follow_symlinks: bool) -> int:
        try:
            return self.stat(follow_symlinks=follow_symlinks).st_mode
        except FileNotFoundError:
            return 0


class Listing:
    """An iterator over entries that can be closed, as `os.scandir` returns one."""

    def __init__(self, directory: Any, names: Sequence[Any], stat_of: Callable[..., os.stat_result]) -> None:
        # scandir's paths begin with what it was called with, `./name` for none.
        self._entries = iter([Entry(name, os.path.join(directory, name), stat_of) for name in names])  # noqa: PTH118 - may be bytes

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> Listing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give no more entries."""
        self._entries = iter(())
