"""A tree of files laid over the real one: what is written goes there, what is read is looked for there first.

Paths are absolute and without links, as `locate` returns them, unless they are called `path`.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from dpdoctor.records import Written
from dpdoctor.worker.overlay import disk
from dpdoctor.worker.overlay.disk import posix
from dpdoctor.worker.overlay.territory import is_kernels

# Links in there lead to no path, but for these.
_DESCRIPTOR = re.compile(r"/(?:proc/(?:self|thread-self|\d+)|dev)/fd/\d+")
MOST_LINKS = 40  # as Linux has it
# What forked processes share of the differences: how many there are, and who writes.
_NUMBER, _WRITER = 0, 1
_SEVERAL = 2**32 - 1
_UNKNOWN = -1
_MOST_PATHS = 1 << 16


class Overlay:
    """The files of the user as the script sees them: the real ones, with all its changes, which nobody else sees.

    The tree is on disk, so forked children see what their parent wrote and the other way round. What is removed is
    known to one process: what a forked child removes, its parent still sees.
    """

    def __init__(self, root: Path, is_free: Callable[[str], bool]) -> None:
        self._root = os.path.realpath(root)
        self.is_free = is_free
        self._removed: set[str] = set()
        self._no_links: set[str] = set()
        self.differences = Differences()
        self._pid = posix.getpid()

    def locate(self, path: Any, *, follow: bool = True, dir_fd: int | None = None) -> str:
        """Return where `path` leads to; its last part may be a link when not `follow`.

        Raises:
            FileNotFoundError: it is empty, or goes up from what is not there.
            OSError: its links go round in circles.
        """
        text = os.fsdecode(path)
        if not text:
            raise disk.refusal(errno.ENOENT, path)
        if not text.startswith("/"):
            text = (
                f"{self.cwd() if dir_fd is None else self._unplaced(posix.readlink(f'/proc/self/fd/{dir_fd}'))}/{text}"
            )
        if is_kernels(text):
            return (self.of_descriptor(text) if follow and _DESCRIPTOR.fullmatch(text) else None) or text
        return self._without_links(text, path, follow=follow)

    def of_descriptor(self, link: str) -> str | None:
        """Return what a descriptor of an open file leads to, as the script knows it; None where that is no file."""
        try:
            target, found = posix.readlink(link), posix.stat(link)
        except OSError:
            return None
        if not stat.S_ISREG(found.st_mode) or disk.kind(target) is None:  # nameless, or removed
            return None
        return self._unplaced(target)

    def _without_links(self, text: str, path: Any, *, follow: bool) -> str:
        parts, at, links = text.split("/")[::-1], "", 0
        while parts:
            part = parts.pop()
            if part == "..":
                kind = self.kind(at or "/")
                if kind is None or not stat.S_ISDIR(kind):
                    raise disk.refusal(errno.ENOENT if kind is None else errno.ENOTDIR, path)
                at = at.rpartition("/")[0]
            if part in ("", ".", ".."):
                continue
            at += f"/{part}"
            target = self._link(at, is_last=not parts) if parts or follow else None
            if target is not None:
                links += 1
                if links > MOST_LINKS:
                    raise disk.refusal(errno.ELOOP, path)
                parts += target.split("/")[::-1]
                at = "" if target.startswith("/") else at.rpartition("/")[0]
        return at or "/"

    def _link(self, at: str, *, is_last: bool) -> str | None:
        """Return the target of a link, None for everything else. Directories are remembered not to be links."""
        if at in self._no_links:
            return None
        place = self.place(at)
        try:
            return None if place is None else posix.readlink(place)
        except OSError:
            if not is_last:
                self._no_links.add(at)
            return None

    def cwd(self) -> str:
        """Return the working directory as the script knows it."""
        return self._unplaced(posix.getcwd())

    def holds(self, place: str) -> bool:
        """Return whether a path as it really is lies in the overlay."""
        return self._unplaced(place) != place

    def _unplaced(self, place: str) -> str:
        return place[len(self._root) :] or "/" if f"{place}/".startswith(f"{self._root}/") else place

    def place(self, at: str) -> str | None:
        """Return the path under which the script's `at` really lies; None when the script removed it.

        Directories that are in both trees are the real ones; `names` merges what they hold.
        """
        over = self._over(at)
        kind = disk.kind(over)
        if kind is None or (stat.S_ISDIR(kind) and not self._is_removed(at) and disk.kind(at) is not None):
            return None if self._is_removed(at) else at
        return over

    def kind(self, at: str) -> int | None:
        """Return the mode of what the script sees at `at`, of a link itself; None for nothing."""
        place = self.place(at)
        return None if place is None else disk.kind(place)

    def missing(self, at: str) -> OSError:
        """Return the error for a path with nothing at it: another one when it is said to lie in a file."""
        parent, kind = at, None
        while kind is None and parent:
            parent = parent.rpartition("/")[0]
            kind = self.kind(parent or "/")
        return disk.refusal(errno.ENOENT if kind is None or stat.S_ISDIR(kind) else errno.ENOTDIR, at)

    def names(self, at: str) -> list[str]:
        """Return what a directory holds, in no order.

        Raises:
            OSError: there is none.
        """
        place, over = self.place(at), self._over(at)
        if place is None or place == over:
            return posix.listdir(over)
        real = [name for name in posix.listdir(place) if f"{at.rstrip('/')}/{name}" not in self._removed]
        return real if disk.kind(over) is None else list(dict.fromkeys(real + posix.listdir(over)))

    def prepare(self, at: str) -> str:
        """Return where a new `at` is to be made.

        Raises:
            OSError: there is no directory for it.
        """
        parent = at.rpartition("/")[0] or "/"
        kind = self.kind(parent)
        if kind is None or not stat.S_ISDIR(kind):
            raise self.missing(at)
        self.differences.made(at)
        disk.make_directories(self._over(parent))
        return self._over(at)

    def own(self, at: str, *, whole: bool = False) -> str:
        """Return where `at` may be changed; copied there if it was not yet, with all it holds if `whole`."""
        over, kind = self._over(at), self.kind(at)
        if kind is None:
            raise self.missing(at)
        if disk.kind(over) is None:
            disk.copy(at, self.prepare(at), kind, beside=self._root)
        if whole and stat.S_ISDIR(kind):
            for name in self.names(at):
                self.own(f"{at}/{name}", whole=True)
        return over

    def remove(self, at: str) -> None:
        """Take away a file, a link or an empty directory that the script sees."""
        over = self._over(at)
        kind = disk.kind(over)
        if kind is not None:
            posix.rmdir(over) if stat.S_ISDIR(kind) else posix.unlink(over)
        self.hide(at)

    def hide(self, at: str) -> None:
        """Let nothing of the real tree be seen at `at` and below."""
        self.forget_links()
        if disk.kind(at) is not None and not self._is_removed(at):
            self.differences.removed(at)
            if self._removed and stat.S_ISDIR(disk.kind(at) or 0):
                # Other threads of the script may remove something at the same time.
                self._removed.difference_update([gone for gone in list(self._removed) if gone.startswith(f"{at}/")])
            self._removed.add(at)

    def forget_links(self) -> None:
        """Look again at what is a link, and what lies behind one: the script made one, or moved something."""
        self._no_links.clear()
        self.differences.look_again()

    def written(self) -> tuple[Written, ...]:
        """Return what the real tree would have got, ordered by path: files and links, and what would be gone."""
        lost = [at for removed in tuple(self._removed) for at in self._lost(removed)]
        found = [*self._files(self._root), *(Written(path=at, change="removed") for at in lost)]
        return tuple(sorted(found, key=lambda each: each.path))

    def _files(self, directory: str) -> Iterator[Written]:
        # A forked child may move or remove files at any moment.
        with contextlib.suppress(FileNotFoundError):
            for name in posix.listdir(directory):
                yield from self._file(f"{directory}/{name}")

    def _file(self, place: str) -> Iterator[Written]:
        with contextlib.suppress(FileNotFoundError):
            found = posix.lstat(place)
            if stat.S_ISDIR(found.st_mode):
                yield from self._files(place)
            else:
                at = self._unplaced(place)
                yield Written(path=at, change="new" if disk.kind(at) is None else "changed", num_bytes=found.st_size)

    def _lost(self, at: str) -> Iterator[str]:
        """Yield what a removed path took along: itself, or what a directory held that was made anew."""
        over, real = disk.kind(self._over(at)), disk.kind(at)
        if real is not None and over is None:
            yield at
        elif real is not None and stat.S_ISDIR(real):
            for name in posix.listdir(at):
                yield from self._lost(f"{at}/{name}")

    def discard(self) -> None:
        """Delete the tree; only the process that made it does."""
        if posix.getpid() == self._pid:
            shutil.rmtree(self._root, ignore_errors=True)
            with contextlib.suppress(OSError):
                posix.unlink(disk.lock_of(self._root))

    def _over(self, at: str) -> str:
        return self._root + at

    def _is_removed(self, at: str) -> bool:
        if not self._removed:
            return False
        while at and at not in self._removed:
            at = at.rpartition("/")[0]
        return bool(at)


class Differences:
    """What the script sees otherwise than it lies on disk, so that the disk itself answers for everything else.

    A file that was changed or removed is known by its inode, whatever path leads to it; what was made, by its name.
    Kept by the one process that writes; as soon as another does, what differs is not `known` to anybody.

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
        kind = disk.kind(at)
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
            if disk.kind(text) is not None or not self._is_plain(parent or ("/" if text.startswith("/") else ".")):
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
