"""The functions that open, list, make, move and remove files, as the script gets them: they work on the overlay."""

from __future__ import annotations

import errno
import functools
import io
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from dpdoctor.worker.overlay import disk
from dpdoctor.worker.overlay.disk import posix
from dpdoctor.worker.overlay.overlay import Overlay


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


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_WRITES = frozenset("wax+")
_NEW = os.O_CREAT | os.O_EXCL
_real_open: Callable[..., Any] = io.open


class Diverted:
    """Stands in for the functions of `os` of the same names, and for `open`; each raises what the original would."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay
        self._access, self._chdir = self.reading(posix.access), self.reading(posix.chdir)
        self._is_away = False

    def reading(self, real: Callable[..., Any], *, follow: bool = True) -> Callable[..., Any]:
        """Return `real`, a function of a path, made to look where the script's file is."""
        overlay, differences, is_as_it_lies = self._overlay, self._overlay.differences, self._is_as_it_lies

        @functools.wraps(real)
        def read(path: Any = ".", *args: Any, **options: Any) -> Any:
            if not differences.is_any or isinstance(path, int):
                return real(path, *args, **options)
            follows = options.get("follow_symlinks", follow)
            if options.get("dir_fd") is None and is_as_it_lies(path, posix.stat if follows else posix.lstat):
                return real(path, *args, **options)
            at = overlay.locate(path, follow=follows, dir_fd=options.pop("dir_fd", None))
            with disk.named(path):
                return real(disk.alike(path, self._seen(at)), *args, **options)

        return read

    def looking(self, real: Callable[..., Any], *, follow: bool = True) -> Callable[..., Any]:
        """Return `posix.stat` or `posix.lstat`, which scripts call often, made to look where the script's file is."""
        differences, slow = self._overlay.differences, self.reading(real, follow=follow)
        hidden = differences.hidden

        @functools.wraps(real)
        def look(path: Any, **options: Any) -> Any:
            if not differences.are_known or self._is_away or "dir_fd" in options:
                return slow(path, **options)
            try:
                found = real(path, **options)
            except OSError as error:
                if differences.is_missing(path, error):
                    raise
                return slow(path, **options)
            if hidden and _identity(found) in hidden and not isinstance(path, int):
                return slow(path, **options)
            return found

        return look

    def access(self, path: Any, mode: int, **options: Any) -> bool:
        """Return whether the script may use what it sees at a path; False where there is nothing."""
        try:
            return bool(self._access(path, mode, **options))
        except OSError:
            return False

    def chdir(self, path: Any) -> None:
        """Change the working directory, maybe to one that the script made: from there the disk's paths are others."""
        self._chdir(path)
        self._overlay.differences.look_again()
        self._is_away = self._overlay.holds(posix.getcwd())

    def _is_as_it_lies(self, path: Any, look: Callable[..., os.stat_result]) -> bool:
        """Return whether the script sees at `path` what the disk has there, or nothing where it has nothing."""
        differences = self._overlay.differences
        if not differences.are_known or self._is_away:
            return False
        try:
            found = look(path)
        except OSError as error:
            return differences.is_missing(path, error)
        return _identity(found) not in differences.hidden

    def changing(self, real: Callable[..., Any], *, follow: bool = True) -> Callable[..., Any]:
        """Return `real`, a function that changes what is at a path, made to change a copy."""
        overlay = self._overlay

        @functools.wraps(real)
        def change(path: Any, *args: Any, **options: Any) -> Any:
            if isinstance(path, int):
                return self._change_by_descriptor(real, path, *args, **options)
            at = overlay.locate(path, follow=options.get("follow_symlinks", follow), dir_fd=options.pop("dir_fd", None))
            with disk.named(path):
                return real(at if overlay.is_free(at) else overlay.own(at), *args, **options)

        return change

    def changing_descriptor(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return what changes an open file as `real` changes a path or descriptor: a copy of one opened for reading."""
        return functools.partial(self._change_by_descriptor, real)

    def _change_by_descriptor(self, real: Callable[..., Any], descriptor: int, *args: Any, **options: Any) -> Any:
        link = f"/proc/self/fd/{descriptor}"
        at = self._overlay.of_descriptor(link)
        if at is None or self._overlay.is_free(at) or self._overlay.holds(posix.readlink(link)):
            return real(descriptor, *args, **options)
        return real(self._overlay.own(at), *args, **options)

    def making(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return `real`, a function that makes something new at a path, made to make it in the overlay."""

        @functools.wraps(real)
        def make(path: Any, *args: Any, **options: Any) -> Any:
            at = self._overlay.locate(path, follow=False, dir_fd=options.pop("dir_fd", None))
            with disk.named(path):
                return real(self._new(at), *args, **options)

        return make

    def removing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return `real`, which removes a file or an empty directory, made to hide it."""

        @functools.wraps(real)
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            at = self._overlay.locate(path, follow=False, dir_fd=dir_fd)
            with disk.named(path):
                if self._overlay.is_free(at):
                    real(at)
                    return
                self._check_removable(at, is_directory=real is posix.rmdir)
                self._overlay.remove(at)

        return remove

    def _check_removable(self, at: str, *, is_directory: bool) -> None:
        kind = self._overlay.kind(at)
        if kind is None:
            raise self._overlay.missing(at)
        if stat.S_ISDIR(kind) != is_directory:
            raise disk.refusal(errno.ENOTDIR if is_directory else errno.EISDIR, at)
        if is_directory and self._overlay.names(at):
            raise disk.refusal(errno.ENOTEMPTY, at)

    def os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """Open a file, or its copy if it is opened for writing."""
        # O_TMPFILE makes a file without a name, which changes nothing.
        writes = flags & _WRITING and flags & os.O_TMPFILE != os.O_TMPFILE
        if not writes and (
            not self._overlay.differences.is_any or (dir_fd is None and self._is_as_it_lies(path, _look(flags)))
        ):
            return posix.open(path, flags, mode, dir_fd=dir_fd)
        at = self._overlay.locate(path, follow=not (flags & _NEW == _NEW or flags & os.O_NOFOLLOW), dir_fd=dir_fd)
        with disk.named(path):
            if not writes:
                return posix.open(self._seen(at), flags, mode)
            if self._overlay.is_free(at):
                return posix.open(at, flags, mode)
            return posix.open(self._for_writing(at, flags), flags | os.O_CREAT, mode)

    def open(  # noqa: PLR0917 - the builtin's signature
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[Any, int], int] | None = None,
    ) -> Any:
        """Open a file as the builtin does; the file's name is the one that was asked for."""
        others = (buffering, encoding, errors, newline, closefd)
        if opener is not None or isinstance(file, int):
            return _real_open(file, mode, *others, opener)
        if _WRITES.isdisjoint(mode):
            differences = self._overlay.differences
            if not differences.is_any:
                return _real_open(file, mode, *others)
            if differences.are_known and not self._is_away:
                try:
                    found = _real_open(file, mode, *others)
                except OSError as error:
                    if differences.is_missing(file, error):
                        raise
                else:
                    if not differences.hidden or _identity(posix.fstat(found.fileno())) not in differences.hidden:
                        return found
                    found.close()
        return _real_open(file, mode, *others, self._opener)

    def _opener(self, path: Any, flags: int) -> int:
        return self.os_open(path, flags, 0o666)

    def _for_writing(self, at: str, flags: int) -> str:
        """Return what to open instead of `at`: a copy, a file to be, or the thing itself when it is a pipe, say."""
        kind = self._overlay.kind(at)
        if kind is None:
            if not flags & os.O_CREAT:
                raise self._overlay.missing(at)
            return self._overlay.prepare(at)
        if flags & _NEW == _NEW:
            raise disk.refusal(errno.EEXIST, at)
        if stat.S_ISDIR(kind):
            raise disk.refusal(errno.EISDIR, at)
        if not stat.S_ISREG(kind):
            return self._seen(at)
        return self._overlay.prepare(at) if flags & os.O_TRUNC else self._overlay.own(at)

    def symlink(self, src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        """Make a link; what it leads to is looked for in the overlay, too."""
        self._overlay.forget_links()
        self.making(lambda place: posix.symlink(src, place, target_is_directory))(dst, dir_fd=dir_fd)

    def link(
        self,
        src: Any,
        dst: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """Give a file a second name, or a copy of it when it is not in the overlay yet."""
        at = self._overlay.locate(src, follow=follow_symlinks, dir_fd=src_dir_fd)
        with disk.named(src):
            place = at if self._overlay.is_free(at) else self._overlay.own(at)
        self.making(lambda new: posix.link(place, new))(dst, dir_fd=dst_dir_fd)

    def rename(self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        """Move a file or directory within the overlay, a copy of it when it is not there yet."""
        overlay = self._overlay
        source = overlay.locate(src, follow=False, dir_fd=src_dir_fd)
        target = overlay.locate(dst, follow=False, dir_fd=dst_dir_fd)
        with disk.named(src, dst):
            if overlay.is_free(source) and overlay.is_free(target):
                return posix.rename(source, target)
            self._check_move(source, target)
            if source == target:
                return None
            overlay.forget_links()
            place = target if overlay.is_free(target) else overlay.prepare(target)
            _move(source if overlay.is_free(source) else overlay.own(source, whole=True), place)
            for at in (source, target):
                if not overlay.is_free(at):
                    overlay.hide(at)
            return None

    def _check_move(self, source: str, target: str) -> None:
        kind, there = self._overlay.kind(source), self._overlay.kind(target)
        if kind is None:
            raise self._overlay.missing(source)
        if stat.S_ISDIR(kind) and target.startswith(f"{source}/"):
            raise disk.refusal(errno.EINVAL, source)
        if there is None or source == target:
            return
        if source.startswith(f"{target}/"):
            raise disk.refusal(errno.ENOTEMPTY, source)
        if stat.S_ISDIR(kind) != stat.S_ISDIR(there):
            raise disk.refusal(errno.EISDIR if stat.S_ISDIR(there) else errno.ENOTDIR, source)
        if stat.S_ISDIR(there) and self._overlay.names(target):
            raise disk.refusal(errno.ENOTEMPTY, source)

    def listdir(self, path: Any = None) -> Any:
        """Return the names in a directory."""
        path = "." if path is None else path
        if self._lists_as_it_lies(path):
            return posix.listdir(path)
        with disk.named(path):
            return [disk.alike(path, name) for name in self._overlay.names(self._overlay.locate(path))]

    def scandir(self, path: Any = None) -> Any:
        """Return the entries of a directory."""
        path = "." if path is None else path
        if self._lists_as_it_lies(path):
            return posix.scandir(path)
        with disk.named(path):
            names = self._overlay.names(self._overlay.locate(path))
        return Listing(path, [disk.alike(path, name) for name in names], self.reading(posix.stat))

    def _lists_as_it_lies(self, path: Any) -> bool:
        differences = self._overlay.differences
        if not differences.is_any or isinstance(path, int):
            return True
        if not self._is_as_it_lies(path, posix.stat):
            return False
        try:
            found = posix.stat(path)
        except OSError:
            return True
        return _identity(found) not in differences.merged

    def getcwd(self) -> str:
        """Return the working directory, which may be one that the script made."""
        return self._overlay.cwd()

    def getcwdb(self) -> bytes:
        """Return the working directory as bytes."""
        return os.fsencode(self._overlay.cwd())

    def to_read(self, path: Any) -> Any:
        """Return the path under which compiled code finds what the script calls `path`; no path: unchanged."""
        if not self._overlay.differences.is_any or not isinstance(path, (str, bytes, os.PathLike)):
            return path
        at = self._overlay.locate(path)
        return disk.alike(path, self._overlay.place(at) or at)

    def to_write(self, path: Any, flags: int = os.O_WRONLY | os.O_CREAT | os.O_TRUNC) -> Any:
        """Return the path that compiled code may open with `flags` instead of `path`; no path: unchanged."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return path
        at = self._overlay.locate(path)
        with disk.named(path):
            return disk.alike(path, at if self._overlay.is_free(at) else self._for_writing(at, flags))

    def _new(self, at: str) -> str:
        """Return where something new is made for the script's `at`."""
        if self._overlay.is_free(at):
            return at
        if self._overlay.kind(at) is not None:
            raise disk.refusal(errno.EEXIST, at)
        return self._overlay.prepare(at)

    def _seen(self, at: str) -> str:
        place = self._overlay.place(at)
        if place is None:
            raise self._overlay.missing(at)
        return place


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _look(flags: int) -> Callable[..., os.stat_result]:
    return posix.lstat if flags & os.O_NOFOLLOW else posix.stat


def _move(source: str, target: str) -> None:
    """Rename, or copy a file where the overlay is on another disk than the source."""
    try:
        posix.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV or os.path.isdir(source):  # noqa: PTH112 - paths are text here
            raise
        shutil.move(source, target)
