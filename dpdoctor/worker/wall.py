"""Walls of the kernel's around a process and all that it starts: an overlay of all its files, or Landlock.

Nothing in the process is replaced, so that it runs as fast as without; compiled code and child programs stand behind
the wall, too.

Behind the overlay they see their files as they are, and what they change is gone: its upper layers are in memory, in a
mount namespace of the process's own. It stands only where the kernel lets this user make such a namespace; most
containers do not.

Landlock (landlock(7)), which an ordinary user may put up, takes from them the right to write, make, move or remove
files, but below the directories that are given. Modes, owners and times it does not guard.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dpdoctor import cgroup
from dpdoctor.records import Written
from dpdoctor.worker.copies import Copy

# linux/sched.h and linux/mount.h
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
# A user namespace must keep these: NOSUID, NODEV and NOEXEC have the same values in statvfs(3).
_KEPT = 0x2 | 0x4 | 0x8

# Devices are found there, and nothing of the user's lies in them, but for shared memory.
_KERNEL = tuple(map(Path, ("/dev", "/proc", "/sys")))
# So much of the free memory may be written, by all walls of a launch; who writes more is told that the disk is full.
_SHARE_OF_MEMORY = 4
# How spaces and the like are written in mountinfo.
_OCTAL = re.compile(r"\\([0-7]{3})")
# Directories that Python fills for itself.
_PASSED_OVER = "__pycache__"

# The numbers of the system calls are the same on all machines (asm-generic/unistd.h).
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULESET_VERSION, _PATH_BENEATH = 1, 1  # linux/landlock.h
_PR_SET_NO_NEW_PRIVS = 38  # linux/prctl.h
# Before this version of Landlock nothing could be moved from one directory to another, wherever both are.
_LEAST_VERSION = 2
# Write to a file; remove, make directories, files, sockets, pipes, devices and links; move between directories.
_WRITING = 1 << 1 | sum(1 << bit for bit in range(4, 14))
_TRUNCATING, _TRUNCATING_SINCE = 1 << 14, 3
# Of these, what can be said of a file.
_OF_FILES = 1 << 1 | _TRUNCATING


class NoWallError(Exception):
    """No wall can stand here; the message says why."""


class Wall:
    """What stands around this process."""

    def __init__(self, outside: int, layers: Mapping[Path, Path]) -> None:
        self._outside, self._layers = outside, layers

    def written(self) -> tuple[Written, ...]:
        """Return what the user's files would have got, ordered by path: files and links, and what would be gone."""
        found = [each for upper, lower in self._layers.items() for each in self._below(upper, lower)]
        return tuple(sorted(found, key=lambda each: each.path))

    def _below(self, upper: Path, lower: Path) -> Iterator[Written]:
        try:
            directory = os.open(_relative(upper), os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._outside)
        except OSError:  # gone meanwhile, or the script closed all descriptors
            return
        try:
            hidden = self._names(lower) if _is_opaque(directory) else set()
            with os.scandir(directory) as entries:
                found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
        finally:
            os.close(directory)
        for name, facts in found:
            yield from self._one(upper / name, lower / name, facts)
        yield from (Written(path=str(lower / name), change="removed") for name in hidden - {name for name, _ in found})

    def _one(self, upper: Path, lower: Path, facts: os.stat_result) -> Iterator[Written]:
        if stat.S_ISDIR(facts.st_mode):
            if upper.name != _PASSED_OVER:
                yield from self._below(upper, lower)
        elif stat.S_ISCHR(facts.st_mode) and not facts.st_rdev:
            yield Written(path=str(lower), change="removed")
        else:
            change = "changed" if self._is_there(lower) else "new"
            yield Written(path=str(lower), change=change, num_bytes=facts.st_size)

    def _is_there(self, lower: Path) -> bool:
        try:
            os.lstat(_relative(lower), dir_fd=self._outside)
        except OSError:
            return False
        return True

    def _names(self, lower: Path) -> set[str]:
        try:
            directory = os.open(_relative(lower), os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._outside)
        except OSError:
            return set()
        try:
            return set(os.listdir(directory))  # noqa: PTH208 - it has no path here
        finally:
            os.close(directory)


def _is_opaque(directory: int) -> bool:
    """Return whether a directory hides what the one below it holds: it was removed and made anew."""
    try:
        return os.getxattr(directory, "user.overlay.opaque") == b"y"
    except OSError:
        return False


def put_up_overlay(
    scratch: Path,
    *,
    own: Path,
    opened: Iterable[Path],
    homes: Iterable[Path],
    lying: Iterable[Path] = (),
    walls: int = 1,
    copied: Iterable[Copy] = (),
    readable: Iterable[Path] = (),
) -> Wall:
    """Put an overlay around this process.

    What is written below `own` and to what is `opened`, or below it, as far as that is there, is really written, but
    for the `homes`, where the script lives and runs. What is `lying` in shared memory, all in one directory, is not.
    `scratch` is an empty directory below `own`; `walls` are to stand at once. Of what is `copied` the process finds the
    copies; what is `readable` it finds itself, and may not write. To be called while the process has one thread only.
    It is tried in a child first: half a wall could not be taken down again.

    Raises:
        NoWallError: it cannot stand here.
    """
    site = _Site(scratch, own, opened, homes, lying, walls, copied, readable)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            site.build()
            site.try_out()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent says it
            os.write(writing, _told(error).encode() or b"unknown")
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        reason = pipe.read()
    os.waitpid(child, 0)
    if reason:
        raise NoWallError(reason)
    return site.build()


def _told(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})"
    return str(error) if isinstance(error, NoWallError) else repr(error)


class _Site:
    """Where a wall is to stand."""

    def __init__(  # noqa: PLR0917 - as `put_up_overlay` is given them
        self,
        scratch: Path,
        own: Path,
        opened: Iterable[Path],
        homes: Iterable[Path],
        lying: Iterable[Path],
        walls: int,
        copied: Iterable[Copy],
        readable: Iterable[Path],
    ) -> None:
        self._scratch, self._own = scratch.resolve(), own.resolve()
        self._homes = {home.resolve() for home in homes}
        self._opened = sorted({path.resolve() for path in opened if path.exists()})
        self._lying = [path for path in lying if not path.is_symlink()]
        self._walls = walls
        self._copied = tuple(copied)
        self._readable = sorted(readable)

    def build(self) -> Wall:
        """Put this process behind it."""
        cwd = Path.cwd()
        mounted = _mount_points()
        for home in self._homes:
            inside = next((point for point in mounted if home in point.parents), None)
            if inside is not None:
                raise NoWallError(f"in {home} something is mounted at {inside}")
        spots = {*self._homes, Path.home().resolve(), Path(tempfile.gettempdir()).resolve()}
        is_mapped = _enter_namespace()
        outside = os.open("/", os.O_PATH | os.O_CLOEXEC)
        _mount("none", "/", flags=_MS_REC | _MS_PRIVATE)
        most_bytes = _free_memory() // _SHARE_OF_MEMORY // self._walls
        _mount("tmpfs", self._scratch, kind="tmpfs", options=f"size={most_bytes}")
        root = self._scratch / "root"
        root.mkdir()
        # A directory that belongs to nobody in a user namespace cannot be copied into an upper layer when something in
        # it changes (EOVERFLOW); the one that is overlaid need not be.
        copy = _Copy(root, self._scratch, mounted | (spots if is_mapped else set()), spots)
        copy.of(Path("/"))
        for path in self._lying:
            if path.is_dir():
                copy.overlay(path, _in(root, path))
        if files := [path for path in self._lying if path.is_file()]:
            shared = self._scratch / "shared"
            shared.mkdir()
            copy.overlay(files[0].parent, shared)
            for path in files:
                _bind(shared / path.name, _in(root, path))
        for path in self._opened:
            _bind(path, _in(root, path))
            for home in self._homes:
                if home.is_relative_to(path):
                    copy.overlay(home, _in(root, home))
        for of_home in self._copied:
            behind = _in(root, of_home.of)
            for name in of_home.left:
                _mount(behind / name, of_home.at / name, flags=_MS_BIND | _MS_REC)
            _mount(of_home.at, behind, flags=_MS_BIND | _MS_REC)
        for path in self._readable:
            _read_only(path, _in(root, path))
        _mount(self._own, _in(root, self._own), flags=_MS_BIND)
        os.chroot(root)
        os.chdir(cwd)
        return Wall(outside, copy.layers)

    def try_out(self) -> None:
        """Write where the script may: not everything that can be overlaid can be written to."""
        for home in self._homes:
            if os.access(home, os.W_OK):
                Path(tempfile.mkdtemp(dir=home)).rmdir()


def _enter_namespace() -> bool:
    """Enter a mount namespace; without the right to do so, in a user namespace, in which this user keeps its number.

    Return whether it is in such a one.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        _call("unshare", _CLONE_NEWNS)
    except PermissionError:
        try:
            _call("unshare", _CLONE_NEWNS | _CLONE_NEWUSER)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise NoWallError("this user may make no more namespaces (user.max_user_namespaces)") from error
            raise
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        return True
    return False


class _Copy:
    """Builds a root whose directories are overlays; `layers` are their upper directories, with what lies below each.

    In a user namespace no directory can be one below which something is mounted (EINVAL): it is made anew, and what it
    holds is put into it one by one. Of what cannot be overlaid all but the `spots` is there to be read.
    """

    def __init__(self, root: Path, scratch: Path, points: set[Path], spots: set[Path]) -> None:
        self._root, self._scratch, self._points = root, scratch, points
        self._vital = {path for spot in spots for path in (spot, *spot.parents)}
        self.layers: dict[Path, Path] = {}

    def of(self, path: Path) -> None:
        """Let a path be found below the new root."""
        target = _in(self._root, path)
        try:
            self._put(path, target)
        except FileNotFoundError:
            raise
        except OSError:
            if path in self._vital:
                raise
            target.mkdir(exist_ok=True)
            _read_only(path, target)

    def _put(self, path: Path, target: Path) -> None:
        if path in _KERNEL:
            target.mkdir()
            _mount(path, target, flags=_MS_BIND | _MS_REC)
        elif path.is_symlink():
            target.symlink_to(path.readlink())
        elif not path.is_dir():
            target.touch()
            _read_only(path, target)
        elif any(path in point.parents for point in self._points):
            self._in_parts(path, target)
        else:
            target.mkdir(parents=True)
            self.overlay(path, target)

    def _in_parts(self, path: Path, target: Path) -> None:
        target.mkdir(exist_ok=True)
        shutil.copystat(path, target)
        for entry in self._entries(path):
            with contextlib.suppress(FileNotFoundError):  # others work in the temporary directory, too
                self.of(entry)

    def _entries(self, path: Path) -> set[Path]:
        try:
            return set(path.iterdir())
        except PermissionError:  # of such a directory one may know what is in it
            return {path / point.relative_to(path).parts[0] for point in self._points if path in point.parents}

    def overlay(self, path: Path, target: Path) -> None:
        """Let a path be found at `target`, with an upper directory over it."""
        upper, work = (self._scratch / f"{len(self.layers)}" / name for name in ("upper", "work"))
        for directory in (upper, work):
            directory.mkdir(parents=True, exist_ok=True)
        options = f"lowerdir={_escaped(path)},upperdir={_escaped(upper)},workdir={_escaped(work)},userxattr"
        _mount("overlay", target, kind="overlay", options=options)
        self.layers[upper] = path


def _in(root: Path, path: Path) -> Path:
    return root / _relative(path)


def _relative(path: Path) -> Path:
    return path.relative_to("/")


def _free_memory() -> int:
    """Return the bytes of memory that this process can still get (proc(5): MemAvailable)."""
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free, left = int(facts["MemAvailable"].split()[0]) * 1024, cgroup.memory_left()
    return free if left is None else min(free, left)


def _mount_points() -> set[Path]:
    """Return where something is mounted (proc(5): mountinfo)."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), line.split()[4])) for line in lines}


def _escaped(path: Path) -> str:
    """Return a path as overlayfs reads it among its options."""
    return re.sub(r"([\\:,])", r"\\\1", str(path))


def _bind(path: Path, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # others remove what is theirs meanwhile
        _mount(path, target, flags=_MS_BIND | _MS_REC)


def _read_only(path: Path, target: Path) -> None:
    _mount(path, target, flags=_MS_BIND | _MS_REC)
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


def put_up_landlock(free: Iterable[Path]) -> str | None:
    """Let this process, and all that it starts, write only below these directories; return why not, None where it may.

    To be called while the process has one thread only. Directories that are not there are passed over.
    """
    try:
        rights = _landlock_rights()
        ruleset = _system_call(
            _CREATE_RULESET, ctypes.byref(ctypes.c_uint64(rights)), ctypes.sizeof(ctypes.c_uint64), 0
        )
        try:
            for path in free:
                _allow(ruleset, path, rights)
            if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            _system_call(_RESTRICT_SELF, ruleset, 0)
        finally:
            os.close(ruleset)
    except OSError as error:
        return f"the kernel has no Landlock for this process: {error.strerror or error}"
    return None


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("directory", ctypes.c_int32))


def _landlock_rights() -> int:
    version = _system_call(_CREATE_RULESET, None, 0, _RULESET_VERSION)
    if version < _LEAST_VERSION:
        raise OSError(f"its version {version} keeps files from being moved")
    return _WRITING | (_TRUNCATING if version >= _TRUNCATING_SINCE else 0)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        directory = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        allowed = rights if path.is_dir() else rights & _OF_FILES
        _system_call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(_Beneath(allowed, directory)), 0)
    finally:
        os.close(directory)


def _system_call(number: int, *arguments: object) -> int:
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
