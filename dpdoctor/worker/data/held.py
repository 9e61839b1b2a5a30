"""What the script holds open that a forked process would move under its feet: its places in files, its connections.

A fork shares every open file's offset. A buffered reader trusts that nobody else moves it, and returns other bytes
where somebody did; two that speak through one socket hear each other's answers.
"""

from __future__ import annotations

import stat
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
# Each open of what lies there has a place of its own, or is mapped to memory and never read by place.
_NOT_READ_BY_PLACE = ("/proc/", "/sys/", "/dev/", "/memfd:")
CANNOT_TELL = "this system does not say which files are open"


class Held:
    """What was open when this was made is not the script's."""

    def __init__(self, descriptors: Path = _DESCRIPTORS) -> None:
        self._descriptors = descriptors
        self._before = frozenset(self._open())

    def shared(self) -> str | None:
        """Return the first file or connection that a fetch in a forked process may disturb; None: there is none."""
        if not self._descriptors.is_dir():
            return CANNOT_TELL
        held = (name for place, name in sorted(self._open().items()) if place not in self._before)
        return next(held, None)

    def _open(self) -> dict[tuple[int, int, int], str]:
        """Return what is open for reading, by descriptor, device and inode."""
        found = {}
        for entry in sorted(self._descriptors.glob("*")):
            try:
                status, name, mode = entry.stat(), str(entry.readlink()), entry.lstat().st_mode
            except OSError:  # closed meanwhile: at least the descriptor that lists the others
                continue
            # The link's own permissions are those that it was opened with.
            if not mode & stat.S_IRUSR:
                continue
            place = int(entry.name), status.st_dev, status.st_ino
            if stat.S_ISSOCK(status.st_mode):
                found[place] = "a connection (socket) is open"
            elif stat.S_ISREG(status.st_mode) and not name.startswith(_NOT_READ_BY_PLACE):
                found[place] = f"{name} is open"
        return found
