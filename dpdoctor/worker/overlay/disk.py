"""The disk as it is: by the functions of `posix` as they were, while those that the script has may be others."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import stat
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dpdoctor import units

if TYPE_CHECKING:
    import posix as posix  # noqa: PLC0414 - it is given on
else:
    import posix as _posix

    posix = types.SimpleNamespace(**vars(_posix))

_COPIED_AT_ONCE = 1 << 26
_COPIES = itertools.count()
_FICLONE = 0x40049409  # linux/fs.h
NO_ROOM = (
    "{} of it would be copied, as it is opened to be changed (mode r+, the default of numpy.memmap, or a database's), "
    "and there is room for {}: open it for reading alone, or give --allow-writes"
)


def refusal(number: int, path: Any) -> OSError:
    """Return the error that the system itself would raise for `path`."""
    return OSError(number, os.strerror(number), path)


def alike(path: Any, text: str) -> str | bytes:
    """Return `text` as bytes if `path` is bytes."""
    return os.fsencode(text) if isinstance(path, bytes) else text


@contextlib.contextmanager
def named(path: Any, other: Any = None) -> Iterator[None]:
    """Let errors name the script's paths, not those in the overlay."""
    try:
        yield
    except OSError as error:
        error.filename = os.fspath(path)
        if other is not None:
            error.filename2 = os.fspath(other)
        raise


def kind(place: str) -> int | None:
    """Return the mode of what is at `place`, of a link itself; None for nothing."""
    try:
        return posix.lstat(place).st_mode
    except OSError:
        return None


def make_directories(place: str) -> None:
    """Make a directory and those it lies in, as far as they are missing."""
    if kind(place) is None:
        make_directories(place.rpartition("/")[0])
        with contextlib.suppress(FileExistsError):
            posix.mkdir(place)


def copy(source: str, target: str, mode: int, *, beside: str) -> None:
    """Copy one file, link or directory of this mode, but not what the directory holds.

    Of several processes one copies, and nobody sees a part of a copy; of threads the first one's counts. It is made in
    the directory that holds `beside`.

    Raises:
        OSError: there is no room for it.
    """
    if stat.S_ISLNK(mode):
        with contextlib.suppress(FileExistsError):
            posix.symlink(posix.readlink(source), target)
    elif stat.S_ISDIR(mode):
        with contextlib.suppress(FileExistsError):
            posix.mkdir(target, stat.S_IMODE(mode))
    else:
        made = f"{beside}.{posix.getpid()}.{next(_COPIES)}"
        with _alone(beside):
            if kind(target) is not None:
                return
            try:
                _copy_content(source, made, stat.S_IMODE(mode))
                _take_place(made, target)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    posix.unlink(made)


@contextlib.contextmanager
def _alone(beside: str) -> Iterator[None]:
    """Hold a lock against other processes, which their threads share; it is let go when its file is closed."""
    lock = posix.open(lock_of(beside), posix.O_WRONLY | posix.O_CREAT | posix.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.lockf(lock, fcntl.LOCK_EX)
        yield
    finally:
        posix.close(lock)


def lock_of(beside: str) -> str:
    """Return the file that is locked while something is copied."""
    return f"{beside}.lock"


def _take_place(made: str, target: str) -> None:
    """Let a file be found at `target`, too, unless there is one."""
    with contextlib.suppress(FileExistsError):
        try:
            posix.link(made, target)
        except PermissionError:  # a file system without hard links
            posix.rename(made, target)


def _copy_content(source: str, target: str, permissions: int) -> None:
    reading = posix.open(source, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        writing = posix.open(target, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC, permissions)
        try:
            if not _is_cloned(reading, writing):
                _check_room(reading, writing)
                while posix.sendfile(writing, reading, None, _COPIED_AT_ONCE):
                    pass
        finally:
            posix.close(writing)
    finally:
        posix.close(reading)


def _is_cloned(reading: int, writing: int) -> bool:
    """Let one file share the blocks of another, where the file system can; return whether it did."""
    try:
        fcntl.ioctl(writing, _FICLONE, reading)
    except OSError:
        return False
    return True


def _check_room(reading: int, writing: int) -> None:
    needed, found = posix.fstat(reading).st_size, posix.fstatvfs(writing)
    room = found.f_bavail * found.f_frsize
    if needed > room:
        raise OSError(errno.ENOSPC, NO_ROOM.format(units.size(needed), units.size(room)))
