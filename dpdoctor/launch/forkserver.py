"""Processes that begin as `python -m module` does, but forked from a server that has imported their modules already.

Importing torch takes most of a short rank's time. A server is known by the environment it was started in, because that
is read while modules are imported: whoever asks with another environment gets a server of its own. Servers live below a
directory of whoever wants them, and are started when they are first needed. They end with all that they forked when
that directory is removed; and alone after a while without a request, or when too many others were asked since.

What a forked process has in common with its siblings, and processes of their own have not: the seed of Python's hashes,
where it is random, and the places of libraries in memory. Its command line and its parent are the server's. Never for a
GPU: CUDA does not survive a fork.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import importlib
import os
import re
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from dpdoctor.launch import keeper
from dpdoctor.launch.kept import KeptProcess

# Where it names a directory, ranks on the CPU are forked by servers below that; otherwise nothing is forked.
DIRECTORY_VARIABLE = "DPDOCTOR_FORKSERVERS"
# What tells one process from its siblings, and is read by no module while it is imported.
_OF_ONE_PROCESS = re.compile(
    r"(LOCAL_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|(DPDOCTOR|PYTEST|GITHUB|RUNNER)_\w+|\w+_TOKEN"
    r"|XDG_(CACHE|DATA|STATE)_HOME|PWD|OLDPWD|SHLVL|_"
)
# Each holds some 200 MB that it shares with nobody.
_MOST_SERVERS = 6
_IDLE_S = 120.0
_LOOK_S = 1.0
_MOST_BYTES = 200_000


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a forked process is to run: `python -m module arguments`, there and with that environment.

    `kept`: the directory of its launch; it has a keeper, so that all that it starts ends with it. Empty: it has none.
    """

    module: str
    arguments: tuple[str, ...] = ()
    cwd: str
    environment: dict[str, str]
    kept: str = ""


def start(
    directory: str,
    request: Request,
    *,
    preload: Sequence[str],
    stdout: IO[bytes],
    stderr: IO[bytes],
) -> KeptProcess | None:
    """Have a server below `directory`, which has imported `preload`, fork a process in a session of its own.

    Returns None where that cannot be: the directory is gone, the request is too large, the modules cannot be imported,
    or the server ended in that moment.
    """
    data = msgspec.json.encode(request)
    if len(data) > _MOST_BYTES or not Path(directory).is_dir():
        return None
    connection = _connected(Path(directory), preload, request.environment)
    if connection is None:
        return None
    with contextlib.suppress(ConnectionError):
        socket.send_fds(connection, [data], [stdout.fileno(), stderr.fileno()])
    process = KeptProcess(connection, kept=bool(request.kept))
    if process.pid:
        return process
    connection.close()
    return None


def _connected(directory: Path, preload: Sequence[str], environment: Mapping[str, str]) -> socket.socket | None:
    """Return a connection to the server for this environment, which is started where there is none."""
    shared = {name: value for name, value in environment.items() if not _OF_ONE_PROCESS.fullmatch(name)}
    key = hashlib.sha256(msgspec.json.encode([sys.executable, list(preload), sorted(shared.items())])).hexdigest()
    path = directory / key[:16]
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            with contextlib.suppress(OSError):  # it has just ended
                return _connection(path)
            path.unlink(missing_ok=True)
        _make_room(directory)
        return _connection(path) if _start_server(path, preload, shared) else None


def _make_room(directory: Path) -> None:
    """Let the servers that were asked longest ago end, so that there may be one more."""
    asked = []
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            if path.is_socket():
                asked.append((path.stat().st_mtime_ns, path))
    for _, path in sorted(asked)[: max(0, len(asked) + 1 - _MOST_SERVERS)]:
        path.unlink(missing_ok=True)


def _connection(path: Path) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        found.connect(str(path))
    except OSError:
        found.close()
        raise
    with contextlib.suppress(FileNotFoundError):  # it was the last moment
        os.utime(path)
    return found


def _start_server(path: Path, preload: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Start a server, which outlives this process, and return whether it listens."""
    with path.with_suffix(".log").open("wb") as log:
        begun = subprocess.run(
            [sys.executable, "-m", "dpdoctor.launch.forkserver", str(path), *preload],
            cwd=path.parent,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=False,
        )
    return begun.returncode == 0


class _Server:
    """Forks for whoever connects; a connection lives as long as its process, no process longer than its other end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Keepers speak for themselves.
        self._children: dict[int, socket.socket | None] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._inode = path.stat().st_ino
        self._ended, self._wakeup = socket.socketpair()
        self._ended.setblocking(False)
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._ended, selectors.EVENT_READ)

    def next_request(self) -> Request:
        """Return in each forked process what it is to run; never in the server, which ends when nobody needs it."""
        asked = time.monotonic()
        while self._path.parent.exists() and (
            self._children or (self._can_be_asked() and time.monotonic() - asked < _IDLE_S)
        ):
            for key, _ in self._selector.select(_LOOK_S):
                if key.fileobj is self._listener:
                    asked = time.monotonic()
                    request = self._fork(self._listener.accept()[0])
                    if request is not None:
                        return request
                elif key.fileobj is self._ended:
                    self._reap()
                else:
                    self._selector.unregister(key.fileobj)
                    _kill(key.data)
        for pid, connection in self._children.items():
            if connection is not None:
                _kill(pid)
        if self._can_be_asked():
            self._path.unlink(missing_ok=True)
        os._exit(0)

    def _can_be_asked(self) -> bool:
        """Return whether the socket is there, and not that of a later server."""
        with contextlib.suppress(FileNotFoundError):
            return self._path.stat().st_ino == self._inode
        return False

    def _fork(self, connection: socket.socket) -> Request | None:
        """Return the request in the new process, None in the server."""
        data, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, 2)
        if not data:
            connection.close()
            return None
        request, pid = msgspec.json.decode(data, type=Request), os.fork()
        if pid == 0:
            self._let_go()
            os.environ.clear()
            os.environ.update(request.environment)
            os.setsid()
            if request.kept:
                keeper.keep(connection, request.kept)
            else:
                connection.close()
            _become(request, descriptors)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        if request.kept:
            connection.close()
            self._children[pid] = None
        else:
            self._children[pid] = connection
            self._selector.register(connection, selectors.EVENT_READ, pid)
            _tell(connection, pid)
        return None

    def _let_go(self) -> None:
        """Close what is the server's, in a forked process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for connection in (self._listener, self._ended, self._wakeup, *self._children.values()):
            if connection is not None:
                connection.close()

    def _reap(self) -> None:
        """Tell of each process that has ended how it ended."""
        with contextlib.suppress(BlockingIOError):
            self._ended.recv(4096)
        for pid, connection in list(self._children.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._children[pid]
            if ended and connection is not None:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(connection)
                _tell(connection, os.waitstatus_to_exitcode(status))
                connection.close()


def _tell(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # whoever asked is gone
        connection.send(str(number).encode())


def _kill(pid: int) -> None:
    """Kill a child that was not waited for yet, with its session, where it has one by now."""
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _become(request: Request, descriptors: Sequence[int]) -> None:
    """Make of a forked process what a new one would be."""
    for descriptor, standard in zip(descriptors, (1, 2), strict=True):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    if sys.path[0] == str(Path.cwd()):  # not with PYTHONSAFEPATH
        sys.path[0] = request.cwd
    os.chdir(request.cwd)
    sys.argv = [request.module, *request.arguments]


def _serve(path: Path, preload: Sequence[str]) -> Request:
    for name in preload:
        importlib.import_module(name)
    gc.freeze()  # what was imported is neither looked through nor taken apart by those that are forked
    server = _Server(path)
    if os.fork():
        os._exit(0)  # whoever waits for this process knows now that the server listens
    return server.next_request()


if __name__ == "__main__":
    runpy.run_module(_serve(Path(sys.argv[1]), sys.argv[2:]).module, run_name="__main__", alter_sys=True)
