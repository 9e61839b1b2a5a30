"""The disk as it is: by the functions of `posix`, which are never replaced, while those of `os` are the script's."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator
from typing import Any

from dpdoctor.worker.overlay.disk import posix

_COPIED_AT_ONCE = 1 << 26
_COPIES = itertools.count()


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

    Several processes may copy the same at once: the first copy counts, and nobody sees a part of one. It is made in the
    directory that holds `beside`.
    """
    if stat.S_ISLNK(mode):
        with contextlib.suppress(FileExistsError):
            posix.symlink(posix.readlink(source), target)
    elif stat.S_ISDIR(mode):
        with contextlib.suppress(FileExistsError):
            posix.mkdir(target, stat.S_IMODE(mode))
    else:
        made = f"{beside}.{posix.getpid()}.{next(_COPIES)}"
        try:
            _copy_content(source, made, stat.S_IMODE(mode))
            _take_place(made, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                posix.unlink(made)


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
            while posix.sendfile(writing, reading, None, _COPIED_AT_ONCE):
                pass
        finally:
            posix.close(writing)
    finally:
        posix.close(reading)
