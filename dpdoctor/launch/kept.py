"""The launcher's end of a process that has a keeper, or that a server forked."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from dpdoctor.launch import keeper


class KeptProcess:
    """A process in a session of its own, with the part of subprocess.Popen that is needed of one.

    It is killed when the process that asked for it ends; where it is `kept`, with all that it started.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        kept: bool = True,
        by: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._connection = connection
        self._kept, self._keeper = kept, by
        self._exit_code: int | None = None
        self._all_ended: bool | None = None

    @functools.cached_property
    def pid(self) -> int:
        """Return its number, when it has begun; 0 where it could not. To be asked for by one thread first."""
        try:
            return int(self._connection.recv(64) or 0)
        except ConnectionError:
            return 0

    @property
    def kept_by(self) -> int | None:
        """Return the number of its keeper, which wraps all that it leaves behind; None: a server forked it."""
        return self._keeper.pid if self._keeper else None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._receive(socket.MSG_DONTWAIT)

    def fileno(self) -> int:
        """Return what can be read from when a process that ran has ended."""
        return self._connection.fileno()

    def wait(self) -> int:
        """Return the exit code when it has ended."""
        code = self._receive(0)
        assert code is not None
        return code

    def send_signal(self, signum: int) -> None:
        """Send a signal to a process that still runs."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def _receive(self, flags: int) -> int | None:
        if self._exit_code is None and self.pid:
            with contextlib.suppress(BlockingIOError):
                self._heard(self._connection.recv(64, flags))
                if not self._kept:
                    self._connection.close()
        return self._exit_code

    def _heard(self, said: bytes) -> None:
        # A keeper that is gone took its process with it.
        self._exit_code = int(said) if said else -signal.SIGKILL

    def end(self) -> bool:
        """Kill it and all that it started; return whether nothing is left: a keeper may have been killed, too."""
        if self._all_ended is None:
            self._all_ended = self._ask_to_end()
            if self._exit_code is None:
                self._heard(b"")
        return self._all_ended

    def _ask_to_end(self) -> bool:
        said = b""
        with contextlib.suppress(OSError):
            self._connection.send(keeper.END)
            while self.pid and select.select([self._connection], [], [], keeper.MOST_S + 5)[0]:
                said = self._connection.recv(64)
                if said in {b"", keeper.ENDED}:
                    break
                self._heard(said)
        return said == keeper.ENDED

    def leave(self) -> None:
        """Let its keeper go, when what was left to do in the launch's directory is done."""
        with contextlib.suppress(OSError):
            self._connection.send(keeper.FAREWELL)
        self._connection.close()
        if self._keeper is not None:
            if not self.end():
                self._keeper.kill()
            self._keeper.wait()


def start(
    command: Sequence[str], *, cwd: str, environment: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]
) -> KeptProcess:
    """Start a command with a keeper, in the directory of a launch; it begins while this process goes on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        # Isolated, without site: a person's settings are for the command, and the keeper needs none.
        by = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(theirs.fileno()), cwd, *command],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=[theirs.fileno()],
        )
    return KeptProcess(ours, by=by)
