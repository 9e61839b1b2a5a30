"""Keeps a rank: all that it starts ends with it, and it with the launcher, however either of them ends.

Between launcher and rank stands a process that wraps what the rank's children leave behind, those in sessions of their
own included. It is run as a file, `python -I -S keeper.py SOCKET DIRECTORY COMMAND...`, and imports little: it is to be
there before the rank imports anything, and to take hardly more than Python itself.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from socket import socket

# What launcher and keeper say to each other, besides numbers.
END, ENDED, FAREWELL = b"end", b"ended", b"farewell"
# linux/prctl.h, signal(7)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SIGKILL = 9
# What ends by itself once nobody is left whose semaphores and shared memory it watches over, and removes them.
_CLEANERS = (b"resource_tracker import main", b"torch_shm_manager")
_CLEANERS_S = 3.0
# What the kernel does not let go of, or does not let us kill, is given up then.
MOST_S = 10.0
_LOOK_S = 0.01
# A process that was just forked has the name of the one that forked it, and cleaners are known by theirs.
_BEGIN_S = 0.05
# How often those that were wrapped and have ended are buried; where the kernel does not tell of a rank's end, how often
# it is looked for.
_BURY_S, _ASK_S = 10.0, 0.1
_SHARED_MEMORY = "/dev/shm"
# What multiprocessing calls a process's directory for its sockets, which it removes when it ends by itself.
_TEMPORARY = "pymp-"
_TIDY = "dpdoctor.launch.tidy"


def wrap(*, wanted: bool) -> None:
    """Become the parent of all that the children of this process leave behind, or be so no longer."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def keep(connection: socket, directory: str) -> None:
    """Return in a new process, the one that is kept; the present one keeps it and never returns.

    The launcher, at the other end of the connection, hears the new process's number, then its exit code, negative for a
    signal. When it says END all that is left is ended, and it hears ENDED; after its FAREWELL this process ends. Where
    it goes without a farewell, its launch's `directory` is tidied as it would have done.
    """
    wrap(wanted=True)
    parent, pid = os.getpid(), os.fork()
    if not pid:
        _die_with(parent)
        os.setsid()
        connection.close()
        return
    try:
        _tell(connection, b"%d" % pid)
        _watch(pid, connection)
        end_all(pid)
        if not _said(connection, END, ENDED) or not _said(connection, FAREWELL):
            os.execv(sys.executable, [sys.executable, "-m", _TIDY, directory])
    finally:
        os._exit(0)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process with its parent; leave at once where that is gone already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _watch(pid: int, connection: socket) -> None:
    """Wait until the rank has ended, and say so, or the launcher says something, or goes."""
    try:
        told_by = [os.pidfd_open(pid)]
    except (AttributeError, OSError):  # an old kernel
        told_by = []
    readable: list[Any] = []
    while connection not in readable:
        watched: list[Any] = [connection, *told_by]
        readable, _, _ = select.select(watched, [], [], _BURY_S if told_by else _ASK_S)
        code = _code_of(pid)
        if code is not None:
            _tell(connection, b"%d" % code)
            return


def _code_of(pid: int) -> int | None:
    """Return how a child ended; None while it runs. Others that have ended are buried with it."""
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended in (0, pid):
            return os.waitstatus_to_exitcode(status) if ended else None


def _said(connection: socket, what: bytes, answer: bytes = b"") -> bool:
    """Wait until the launcher says something, and answer; return whether it was `what`, and not that it is gone."""
    try:
        heard = connection.recv(64)
    except ConnectionError:
        return False
    if answer:
        _tell(connection, answer)
    return heard == what


def _tell(connection: socket, what: bytes) -> None:
    try:  # noqa: SIM105 - contextlib takes its time, too
        connection.send(what)
    except OSError:
        pass  # the launcher is gone, which is seen when it is listened to


def end_all(*pids: int, spared: Collection[int] = ()) -> None:
    """Kill every descendant of this process; remove what torch keeps in shared memory for them, and for `pids`.

    Children of this process that are `spared` live on, with all that they started.
    """
    began, ended, sockets = time.monotonic(), set(pids), set[str]()
    if _descendants(spared):
        time.sleep(_BEGIN_S)
    while time.monotonic() - began < MOST_S:
        left = _descendants(spared)
        if not left:
            break
        ended |= left
        sockets |= _sockets(left)
        is_over = time.monotonic() - began > _CLEANERS_S
        for pid in left if is_over else _no_cleaners(left):
            try:  # noqa: SIM105
                os.kill(pid, _SIGKILL)
            except OSError:
                pass  # it has just ended, or may not be killed by this user
        time.sleep(_LOOK_S)
    _free_shared_memory(ended)
    for path in sockets:
        _remove_with_directory(path)


def _descendants(spared: Collection[int]) -> set[int]:
    """Return who is left of this process's children and all that they started; those that have ended are buried."""
    if not spared and not _is_parent():
        return set()
    parents = dict(_parents())
    left = {child for child, parent in parents.items() if parent == os.getpid() and child not in spared}
    left -= {child for child in left if _buried(child)}
    while more := {child for child, parent in parents.items() if parent in left} - left:
        left |= more
    return left


def _is_parent() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _buried(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] == child
    except ChildProcessError:
        return True


def children() -> set[int]:
    """Return the children of this process."""
    return {child for child, parent in _parents() if parent == os.getpid()}


def _parents() -> Iterator[tuple[int, int]]:
    """Yield every process with its parent (proc(5): stat; its second field may hold anything)."""
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib takes as long to import as all the rest
        if name.isdigit():
            fields = _read(f"/proc/{name}/stat").rpartition(b") ")[2].split()
            if fields:
                yield int(name), int(fields[1])


def _no_cleaners(pids: set[int]) -> set[int]:
    commands = {pid: _read(f"/proc/{pid}/cmdline") for pid in pids}
    return {pid for pid, command in commands.items() if not any(cleaner in command for cleaner in _CLEANERS)}


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


def _free_shared_memory(pids: set[int]) -> None:
    """Remove torch's files of these processes: one that is killed has no time to."""
    try:
        names = os.listdir(_SHARED_MEMORY)  # noqa: PTH208
    except OSError:
        return  # there is none
    for name in names:
        kind, _, rest = name.partition("_")
        pid = rest.partition("_")[0]
        if kind == "torch" and pid.isdigit() and int(pid) in pids:
            try:  # noqa: SIM105
                os.unlink(f"{_SHARED_MEMORY}/{name}")  # noqa: PTH108
            except OSError:
                pass  # somebody else was quicker, or it is another user's


def _sockets(pids: set[int]) -> set[str]:
    """Return the Unix sockets below directories of multiprocessing's at which these processes listen."""
    held = {link for pid in pids for link in _links(f"/proc/{pid}/fd")}
    fields = [line.split() for line in _read("/proc/net/unix").splitlines()[1:]]
    named = [(each[6].decode(), os.fsdecode(each[7])) for each in fields if len(each) == 8]
    return {path for inode, path in named if f"{os.sep}{_TEMPORARY}" in path and f"socket:[{inode}]" in held}


def _links(directory: str) -> list[str]:
    try:
        return [os.readlink(f"{directory}/{name}") for name in os.listdir(directory)]  # noqa: PTH115, PTH208
    except OSError:
        return []


def _remove_with_directory(path: str) -> None:
    try:
        os.unlink(path)  # noqa: PTH108
        os.rmdir(os.path.dirname(path))  # noqa: PTH106, PTH120
    except OSError:
        pass  # it holds something else, or was removed by its process


if __name__ == "__main__":
    from _socket import socket as _Socket  # noqa: N812 - what `socket` adds to it is not needed

    keep(_Socket(fileno=int(sys.argv[1])), sys.argv[2])  # type: ignore[arg-type]
    os.execv(sys.argv[3], sys.argv[3:])
