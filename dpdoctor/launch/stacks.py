"""Where a process stands: the stack of its main thread, as faulthandler wrote it."""

from __future__ import annotations

import importlib.util
import os
import re
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

PACKAGE = Path(__file__).parents[1]
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')
_FATAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_NOT_USERS = ("<", *(f"{path}{os.sep}" for path in (PACKAGE, sysconfig.get_path("stdlib"))))
_INSTALLED = ("/site-packages/", "/dist-packages/")


class Frame(msgspec.Struct, frozen=True):
    """One line of a stack."""

    file: str
    line: int
    function: str

    @property
    def is_users(self) -> bool:
        """Return whether it is neither Python's, nor installed, nor dpdoctor's."""
        return not self.file.startswith(_NOT_USERS) and not any(name in self.file for name in _INSTALLED)

    @property
    def is_waiting(self) -> bool:
        """Return whether it is torch's or dpdoctor's: who stands there waits for other ranks."""
        return self._is_in(PACKAGE, *_torch())

    @property
    def is_exchanging(self) -> bool:
        """Return whether it is of torch.distributed or DDP: who stands there exchanges something with other ranks."""
        ddp = [str(Path(folder, "nn", "parallel", "distributed.py")) for folder in _torch()]
        return self.file in ddp or self._is_in(*(Path(folder, "distributed") for folder in _torch()))

    @property
    def is_fsdps(self) -> bool:
        """Return whether it is of torch's FSDP."""
        return self._is_in(*(Path(folder, "distributed", "fsdp") for folder in _torch()))

    def _is_in(self, *folders: str | Path) -> bool:
        return any(self.file.startswith(f"{folder}{os.sep}") for folder in folders)


def innermost(stacks: Path) -> Frame | None:
    """Return the innermost frame; None: there is no stack."""
    return next(_frames(stacks), None)


def innermost_users(stacks: Path) -> Frame | None:
    """Return the innermost frame of the user's; None: there is none."""
    return next((frame for frame in _frames(stacks) if frame.is_users), None)


def is_in_fsdp(stacks: Path) -> bool:
    """Return whether a call of torch's FSDP has not returned."""
    return any(frame.is_fsdps for frame in _frames(stacks))


def fatal(stacks: Path) -> str:
    """Return the signal's name, as faulthandler gives it, by which the process died; empty: none that it saw."""
    try:
        found = _FATAL.findall(stacks.read_text(errors="replace"))
    except OSError:
        return ""
    return str(found[-1]) if found else ""


def _torch() -> Sequence[str]:
    torch = importlib.util.find_spec("torch")  # found, not imported
    return torch.submodule_search_locations or () if torch else ()


def _frames(stacks: Path) -> Iterator[Frame]:
    """Yield the frames of the last dump's main thread, the innermost first."""
    try:
        lines = stacks.read_text(errors="replace").splitlines()
    except OSError:
        return
    # faulthandler tells the main thread, in which signals are handled, last.
    heads = [number for number, line in enumerate(lines) if "most recent call first" in line and "C stack" not in line]
    for line in lines[heads[-1] + 1 :] if heads else ():
        found = _FRAME.match(line)
        if found:
            yield Frame(found["file"], int(found["line"]), found["function"])
