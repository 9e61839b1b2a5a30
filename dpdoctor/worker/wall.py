"""A wall of the kernel's: a process and all that it starts see their files as they are, and what they change is gone.

An overlay of the whole file system whose upper layers are in memory, in a mount namespace of the process's own. Nothing
in the process is replaced, so that it runs as fast as without; compiled code and child programs stand behind it, too.
It stands only where the kernel lets this user make such a namespace; most containers do not.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# linux/sched.h and linux/mount.h
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
# A user namespace must keep these: NOSUID, NODEV and NOEXEC have the same values in statvfs(3).
_KEPT = 0x2 | 0x4 | 0x8

# Nothing of the user's lies in them, and devices are found there.
_KERNEL = tuple(map(Path, ("/dev", "/proc", "/sys")))
# What is written lies in memory; a script that writes more is told that the disk is full.
_MOST_OF_MEMORY = "25%"
# How spaces and the like are written in mountinfo.
_OCTAL = re.compile(r"\\([0-7]{3})")


def stand(scratch: Path, *, opened: Path, homes: Iterable[Path]) -> str | None:
    """Put the wall around this process; return why it cannot stand here, None where it does.

    What is written below the directory `opened` is really written; `scratch` is an empty directory; `homes` are where
    the script writes most likely. To be called while the process has one thread only. It is tried in a child first:
    half a wall could not be taken down again.
    """
    spots = {home.resolve() for home in (*homes, Path.home(), Path(tempfile.gettempdir()))}
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            _raise_wall(scratch, opened, spots)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent says it
            os.write(writing, _told(error).encode() or b"unknown")
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        reason = pipe.read()
    os.waitpid(child, 0)
    if reason:
        return reason
    _raise_wall(scratch, opened, spots)
    return None


def _told(error: BaseException) -> str:
    return f"{error.strerror} ({error.filename})" if isinstance(error, OSError) else repr(error)


def _raise_wall(scratch: Path, opened: Path, homes: set[Path]) -> None:
    cwd = Path.cwd()
    is_mapped = _enter_namespace()
    _mount("none", "/", flags=_MS_REC | _MS_PRIVATE)
    # A directory that belongs to nobody in a user namespace cannot be copied into an upper layer when something in it
    # changes (EOVERFLOW); the one that is overlaid need not be.
    points = _mount_points() | (homes if is_mapped else set())
    _mount("tmpfs", scratch, kind="tmpfs", options=f"size={_MOST_OF_MEMORY}")
    root = scratch / "root"
    root.mkdir()
    _Copy(root, scratch, points).of(Path("/"))
    _mount(opened, _in(root, opened), flags=_MS_BIND)
    os.chroot(root)
    os.chdir(cwd)


def _enter_namespace() -> bool:
    """Enter a mount namespace; without the right to do so, in a user namespace, in which this user keeps its number.

    Return whether it is in such a one.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        _call("unshare", _CLONE_NEWNS)
    except PermissionError:
        _call("unshare", _CLONE_NEWNS | _CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        return True
    return False


class _Copy:
    """Builds a root whose directories are overlays.

    In a user namespace no directory can be one below which something is mounted (EINVAL): it is made anew, and what it
    holds is put into it one by one.
    """

    def __init__(self, root: Path, scratch: Path, points: set[Path]) -> None:
        self._root, self._scratch, self._points = root, scratch, points
        self._number = 0

    def of(self, path: Path) -> None:
        """Let a path be found below the new root."""
        target = _in(self._root, path)
        if path in _KERNEL:
            target.mkdir()
            _mount(path, target, flags=_MS_BIND | _MS_REC)
        elif path.is_symlink():
            target.symlink_to(path.readlink())
        elif not path.is_dir():
            _read_only(path, target)
        elif any(path in point.parents for point in self._points):
            self._in_parts(path, target)
        else:
            self._overlay(path, target)

    def _in_parts(self, path: Path, target: Path) -> None:
        target.mkdir(exist_ok=True)
        shutil.copystat(path, target)
        for entry in path.iterdir():
            with contextlib.suppress(FileNotFoundError):  # others work in the temporary directory, too
                self.of(entry)

    def _overlay(self, lower: Path, target: Path) -> None:
        self._number += 1
        upper, work = (self._scratch / f"{self._number}" / name for name in ("upper", "work"))
        for directory in (upper, work, target):
            directory.mkdir(parents=True)
        options = f"lowerdir={_escaped(lower)},upperdir={_escaped(upper)},workdir={_escaped(work)},userxattr"
        _mount("overlay", target, kind="overlay", options=options)


def _in(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _mount_points() -> set[Path]:
    """Return where something is mounted (proc(5): mountinfo)."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), line.split()[4])) for line in lines}


def _escaped(path: Path) -> str:
    """Return a path as overlayfs reads it among its options."""
    return re.sub(r"([\\:,])", r"\\\1", str(path))


def _read_only(path: Path, target: Path) -> None:
    target.touch()
    _mount(path, target, flags=_MS_BIND)
    _mount("none", target, flags=_MS_REMOUNT | _MS_BIND | _MS_RDONLY | (os.statvfs(path).f_flag & _KEPT))


def _mount(source: str | Path, target: str | Path, *, kind: str = "none", flags: int = 0, options: str = "") -> None:
    arguments = [os.fsencode(value) for value in (source, target, kind)]
    _call("mount", *arguments, ctypes.c_ulong(flags), options.encode() or None, path=target)


def _call(name: str, *arguments: Any, path: str | Path | None = None) -> None:
    """Call a function of the C library.

    Raises:
        OSError: it failed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path or name))
