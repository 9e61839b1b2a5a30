"""What the script sees otherwise than it lies on disk, so that the disk itself answers for everything else.

A file that was changed or removed is known by its inode, whatever path leads to it; what was made, by its name.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from multiprocessing import get_context
from typing import Any

from dpdoctor.worker.overlay import raw
from dpdoctor.worker.overlay.disk import posix

_NUMBER, _WRITER = 0, 1
_SEVERAL = 2**32 - 1
_UNKNOWN = -1
_MOST_PATHS = 1 << 16


class Differences:
    """Kept by the one process that writes; as soon as another does, what differs is not `known` to anybody.

    Attributes:
        hidden: device and inode of what is real, but in whose place the script sees something else, or nothing.
        merged: those of real directories of which the script sees other names.
    """

    def __init__(self) -> None:
        # How many differences there are, and the process that made them: forked children share these two.
        self._shared = memoryview(mmap.mmap(-1, 8)).cast("I")
        self._claim = get_context("fork").Lock()
        self._number = 0
        self._names: set[str] = set()
        self._no_links: set[str] = set()
        self.hidden: set[tuple[int, int]] = set()
        self.merged: set[tuple[int, int]] = set()

    @property
    def is_any(self) -> bool:
        """Return whether any process ever wrote or removed anything."""
        return self._shared[_NUMBER] != 0

    @property
    def are_known(self) -> bool:
        """Return whether this process knows of all of them."""
        return self._shared[_NUMBER] == self._number

    def forget(self) -> None:
        """Know nothing from now on: what differs cannot be told by inodes and names."""
        self._number = _UNKNOWN

    def look_again(self) -> None:
        """Know nothing more of paths at which there was nothing: relative ones lead elsewhere."""
        self._no_links.clear()

    def made(self, at: str) -> None:
        """Note that something is made at `at`, or a copy of what is there."""
        directory, _, name = at.rpartition("/")
        if name not in self._names:
            self._names.add(name)
            self._count()
        self._hide(at)
        self._merge(directory)

    def removed(self, at: str) -> None:
        """Note that the real thing at `at` is not seen any more, nor what it holds."""
        self._merge(at.rpartition("/")[0])
        self._hide(at)
        kind = raw.kind(at)
        if kind is not None and stat.S_ISDIR(kind):
            for name in posix.listdir(at):
                self.removed(f"{at}/{name}")

    def is_missing(self, path: Any, refused: OSError) -> bool:
        """Return whether `refused` says that nothing is at a path, and the script sees nothing there either.

        False where that is not certain.
        """
        if refused.errno not in (errno.ENOENT, errno.ENOTDIR):
            return False
        text = os.fsdecode(path)
        parent, _, name = text.rpartition("/")
        if name in self._names or name in ("", ".", ".."):
            return False
        if text not in self._no_links:
            # A link may lead to what the script made, and a directory may have given way to another.
            if raw.kind(text) is not None or not self._is_plain(parent or ("/" if text.startswith("/") else ".")):
                return False
            if len(self._no_links) == _MOST_PATHS:
                self._no_links.clear()
            self._no_links.add(text)
        return True

    def _is_plain(self, directory: str) -> bool:
        try:
            found = posix.stat(directory)
        except OSError as error:
            return self.is_missing(directory, error)
        return (found.st_dev, found.st_ino) not in self.hidden

    def _hide(self, at: str) -> None:
        try:
            found = posix.lstat(at)
        except OSError:
            return
        if stat.S_ISLNK(found.st_mode):
            # Paths lead through a link without a trace of it.
            self.forget()
        identity = (found.st_dev, found.st_ino)
        if identity not in self.hidden:
            self.hidden.add(identity)
            self.look_again()
            self._count()

    def _merge(self, directory: str) -> None:
        try:
            found = posix.stat(directory or "/")
        except OSError:
            return
        identity = (found.st_dev, found.st_ino)
        if identity not in self.merged:
            self.merged.add(identity)
            self._count()

    def _count(self) -> None:
        shared, own = self._shared, posix.getpid()
        if shared[_WRITER] == 0:
            with self._claim:
                shared[_WRITER] = shared[_WRITER] or own
        if shared[_WRITER] != own:
            shared[_NUMBER] = _SEVERAL
        elif shared[_NUMBER] != _SEVERAL:
            shared[_NUMBER] += 1
            self._number += self._number != _UNKNOWN
