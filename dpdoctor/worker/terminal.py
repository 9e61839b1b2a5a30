"""A terminal on standard input, for scripts and programs that ask one for its size (`stty size`)."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import pty
import struct
import sys
import termios

from dpdoctor.worker.base.patches import Patches

ROWS, COLUMNS = 24, 80
_STDIN = 0


def give(patches: Patches) -> None:
    """Make descriptor 0 a pseudo-terminal of the usual size on which nobody types: whoever reads finds the end at once.

    `sys.stdin` stays empty and no terminal, or scripts would begin to ask. Where pseudo-terminals cannot be had nothing
    changes.
    """
    with contextlib.suppress(OSError, termios.error):
        terminal = _opened()
        # sys.stdin reads from descriptor 0: give it what lay there.
        before = os.dup(_STDIN)
        stream = open(before)  # noqa: SIM115, PTH123 - for as long as the process lives
        vars(sys).update(stdin=stream, __stdin__=stream)
        os.dup2(terminal, _STDIN)
        os.close(terminal)
        _answer(patches, {0, 1, 2, before})


def _opened() -> int:
    """Return a descriptor of a new terminal; its other end stays open, unseen by programs, until this process ends."""
    _, end = pty.openpty()
    try:
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", ROWS, COLUMNS, 0, 0))
        modes = termios.tcgetattr(end)
        modes[3] &= ~(termios.ICANON | termios.ECHO)
        modes[6][termios.VMIN] = modes[6][termios.VTIME] = 0  # a read never waits
        termios.tcsetattr(end, termios.TCSANOW, modes)
        # Nobody would take away what is written to it.
        return os.open(os.ttyname(end), os.O_RDONLY | os.O_NOCTTY)
    finally:
        os.close(end)


def _answer(patches: Patches, standard: set[int]) -> None:
    """Have the other standard streams, which are files here, tell the terminal's size, too."""
    original = os.get_terminal_size

    @functools.wraps(original)
    def get_terminal_size(descriptor: int = 1, /) -> os.terminal_size:
        try:
            return original(descriptor)
        except OSError:
            if descriptor not in standard:
                raise
            return original(_STDIN)

    patches.replace(os, "get_terminal_size", get_terminal_size)
