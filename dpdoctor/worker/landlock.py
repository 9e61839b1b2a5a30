"""A wall of the kernel's that an ordinary user may put up: compiled code and child programs cannot write behind it.

Landlock (landlock(7)) takes from this process, and from all that it starts, the right to write, make, move or remove
files, but below the directories that are given. Modes, owners and times it does not guard.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

# The numbers of the system calls are the same on all machines (asm-generic/unistd.h).
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1  # linux/landlock.h
_PR_SET_NO_NEW_PRIVS = 38  # linux/prctl.h
# Before this version nothing could be moved from one directory to another, wherever both are.
_LEAST = 2
# Write to a file; remove, make directories, files, sockets, pipes, devices and links; move between directories.
_WRITING = 1 << 1 | sum(1 << bit for bit in range(4, 14))
_TRUNCATING, _TRUNCATING_SINCE = 1 << 14, 3
# Of these, what can be said of a file.
_OF_FILES = 1 << 1 | _TRUNCATING


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("directory", ctypes.c_int32))


def stand(free: Iterable[Path]) -> str | None:
    """Let this process, and all that it starts, write only below these directories; return why not, None where it may.

    To be called while the process has one thread only. Directories that are not there are passed over.
    """
    try:
        rights = _rights()
        ruleset = _call(_CREATE_RULESET, ctypes.byref(ctypes.c_uint64(rights)), ctypes.sizeof(ctypes.c_uint64), 0)
        try:
            for path in free:
                _allow(ruleset, path, rights)
            if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            _call(_RESTRICT_SELF, ruleset, 0)
        finally:
            os.close(ruleset)
    except OSError as error:
        return f"the kernel has no Landlock for this process: {error.strerror or error}"
    return None


def _rights() -> int:
    version = _call(_CREATE_RULESET, None, 0, _VERSION)
    if version < _LEAST:
        raise OSError(f"its version {version} keeps files from being moved")
    return _WRITING | (_TRUNCATING if version >= _TRUNCATING_SINCE else 0)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        directory = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        allowed = rights if path.is_dir() else rights & _OF_FILES
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(_Beneath(allowed, directory)), 0)
    finally:
        os.close(directory)


def _call(number: int, *arguments: object) -> int:
    """Make a system call.

    Raises:
        OSError: it failed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    result: int = libc.syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
