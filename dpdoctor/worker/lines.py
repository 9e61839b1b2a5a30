"""Which line of the user's own code is speaking."""

from __future__ import annotations

import linecache
import os
import runpy
import sys
import sysconfig
import traceback
import types
from pathlib import Path
from types import FrameType, TracebackType

import torch

from dpdoctor.worker.patches import Patches

_OWN = {Path(__file__).parents[1], Path(__file__).resolve().parents[1]}
_LIBRARIES = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
# With a separator at the end: `dpdoctor-examples/train.py` is not ours.
_OURS = tuple(f"{path}{os.sep}" for path in _OWN)
_RUNPY = runpy.run_path.__code__.co_filename
_NOT_USERS = ("<", *_OURS, *(f"{path}{os.sep}" for path in _LIBRARIES))
# A virtual environment may take torch from another one, or from the system.
_INSTALLED = ("/site-packages/", "/dist-packages/")


def _is_users(filename: str) -> bool:
    return not filename.startswith(_NOT_USERS) and not any(name in filename for name in _INSTALLED)


def caller() -> str:
    """Return `file:line` of the innermost frame on the stack that is neither ours nor an installed library's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            return _words(frame)
        frame = frame.f_back
    return "unknown line"


def of_users(frame: FrameType | None) -> str | None:
    """Return `file:line` of the user's frame that runs, or that called a library that does; None: it called us."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_OURS):
            return None
        if _is_users(name):
            return _words(frame)
        frame = frame.f_back
    return None


def _words(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def keep_stacks_short(patches: Patches) -> None:
    """Leave our frames out of the stack that torch formats each time it is seeded while CUDA is not initialised."""
    short = types.ModuleType(traceback.__name__)
    vars(short).update({**vars(traceback), "format_stack": _format_stack})
    patches.replace(torch.cuda, "traceback", short)


def _format_stack() -> list[str]:
    """Return what `traceback.format_stack()` returns where the script was started by Python itself."""
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
    theirs = [frame for frame in frames if not frame.f_code.co_filename.startswith((*_OURS, _RUNPY))]
    return traceback.StackSummary.extract((frame, frame.f_lineno) for frame in reversed(theirs)).format()


def source(line: str) -> str:
    """Return the text of the line that `caller` named, without its indentation; empty where it cannot be read."""
    path, _, number = line.rpartition(":")
    return linecache.getline(path, int(number)).strip() if number.isdecimal() else ""


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the user's first frame on; the whole of it when none is the user's."""
    entry = trace
    while entry is not None and not _is_users(entry.tb_frame.f_code.co_filename):
        entry = entry.tb_next
    return entry or trace


def raised_at(trace: TracebackType | None) -> str:
    """Return `file:line` of the innermost frame of the user's code in a traceback."""
    for entry in reversed(traceback.extract_tb(trace)):
        if _is_users(entry.filename):
            return f"{entry.filename}:{entry.lineno}"
    return "unknown line"
