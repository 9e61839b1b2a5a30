"""Files that several may want to change at once, without a second file beside them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from dpdoctor.errors import BaselineError, OutputError

# What file systems without hard links say.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}


def make_directory(path: Path) -> None:
    """Create a directory and those above it, where they are missing.

    Raises:
        OutputError: that is not possible.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot create the directory {path}: {error.strerror or error}") from error


def write_new(path: Path, data: bytes) -> None:
    """Write a file that does not exist yet, whole or not at all.

    Raises:
        FileExistsError: it does, be it since a moment ago.
        OutputError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        try:
            path.hardlink_to(temporary)  # unlike a rename, never in the place of another
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with path.open("xb") as file:
                file.write(data)
    except FileExistsError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep others that lock a file from it while the context lasts; it may be replaced meanwhile.

    Raises:
        BaselineError: it cannot be opened for writing.
    """
    while True:
        try:
            file = path.open("r+b")
        except OSError as error:
            raise BaselineError(f"cannot open {path}: {error.strerror or error}") from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Whoever had it before may have put another file in its place.
            if _is_still(path, file.fileno()):
                yield
                return


@contextlib.contextmanager
def locked_directory(path: Path) -> Iterator[None]:
    """Keep others that lock a directory from it while the context lasts."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
