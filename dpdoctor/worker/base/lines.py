"""Which line of the user's own code is speaking, and what it raised."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import os
import re
import runpy
import sys
import sysconfig
import textwrap
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from dpdoctor.worker.base.patches import Patches

_OWN = {Path(__file__).parents[1], Path(__file__).resolve().parents[1]}
_LIBRARIES = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
# With a separator at the end: `dpdoctor-examples/train.py` is not ours.
_OURS = tuple(f"{path}{os.sep}" for path in _OWN)
_RUNPY = runpy.run_path.__code__.co_filename
_NOT_THEIRS = (*_OURS, _RUNPY)
_SEEDED = (torch.cuda, torch.xpu, torch.mtia)
_NOT_USERS = ("<", *_OURS, *(f"{path}{os.sep}" for path in _LIBRARIES))
# A virtual environment may take torch from another one, or from the system.
_INSTALLED = ("/site-packages/", "/dist-packages/")
# As frameworks call what runs before, after or on something.
_CALLBACK = re.compile(r"_?(?:on|before|after)_\w")
# Of an exception no more characters are told.
_LONGEST = 500
_MORE = " \N{HORIZONTAL ELLIPSIS}"
# References to what a frame alone holds: its own, a variable's, and that of the function which counts them.
_OF_FRAMES = 3
# Of a frame: its identity, and the instruction that it is at.
Place = tuple[int, int]


def is_users(filename: str) -> bool:
    """Return whether a file is the user's own: neither ours nor an installed library's."""
    return not filename.startswith(_NOT_USERS) and not any(name in filename for name in _INSTALLED)


def is_ours(filename: str) -> bool:
    """Return whether a file is dpdoctor's."""
    return filename.startswith(_OURS)


def caller(frame: FrameType | None = None) -> str:
    """Return `file:line` of the innermost frame from this one on that is neither ours nor an installed library's.

    None: the caller's.
    """
    frame = frame or sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return _words(frame)
        frame = frame.f_back
    return "unknown line"


@contextlib.contextmanager
def local_variables(frame: FrameType) -> Iterator[dict[str, Any]]:
    """Give the local variables of a function that runs.

    Before Python 3.13 they are a copy that the frame keeps until the function returns, and with it all that they held,
    such as a batch. It is emptied then, unless the script holds it, who was given it by `locals()`.
    """
    held = frame.f_locals
    is_copy = sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    is_frames_alone = sys.getrefcount(held) <= _OF_FRAMES
    try:
        yield held
    finally:
        if is_copy and is_frames_alone:
            held.clear()


def under_way() -> frozenset[Place]:
    """Return where the user's frames on the caller's stack are."""
    found: set[Place] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            found.add(_place(frame))
        frame = frame.f_back
    return frozenset(found)


def of_users(frame: FrameType | None, driving: frozenset[Place] = frozenset()) -> tuple[str, str] | None:
    """Return `file:line` of the user's frame that runs, or that called a library that does; None: it called us.

    With it what of that library runs, where the frame is at one of the places `driving`; else nothing: a line that has
    not been left for a whole step called a library that runs the loop, and says nothing of what the loop does. Torch
    runs no loop: a step of its optimizer is all that such a line called.
    """
    inner: list[FrameType] = []
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_OURS):
            return None
        if is_users(name):
            return _words(frame), _library(inner) if _place(frame) in driving else ""
        inner.append(frame)
        frame = frame.f_back
    return None


def _place(frame: FrameType) -> Place:
    return id(frame), frame.f_lasti


def _library(inner: list[FrameType]) -> str:
    """Return what runs of the library that the user's frame called: the innermost callback, else its innermost code.

    Args:
        inner: its frames and those of what it calls, the innermost first; empty: what runs is not Python.

    Empty where that library is torch.
    """
    packages = [package(frame.f_code.co_filename) for frame in inner]
    called = next(filter(None, reversed(packages)), "")
    if called == "torch":
        return ""
    theirs = [frame for frame, of in zip(inner, packages, strict=True) if of == called]
    callback = next((frame for frame in inner if _CALLBACK.match(frame.f_code.co_name)), None)
    shown = callback or next(iter(theirs), None)
    return "another library" if shown is None else f"{_qualified(shown)} ({called or 'installed'})"


def package(filename: str) -> str:
    """Return the name of the installed package that a file is of; empty: of none."""
    _, found, rest = filename.rpartition("-packages/")
    return rest.partition(os.sep)[0].removesuffix(".py") if found else ""


def _qualified(frame: FrameType) -> str:
    """Return the name of the function that runs, with its class where this Python knows it."""
    return str(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))


def _words(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def keep_stacks_short(patches: Patches) -> None:
    """Leave our frames out of the stacks that torch formats each time it is seeded while a device is not initialised.

    It does so for each kind of device that it knows, and a stack takes the longer the more frames it has.
    """
    short = types.ModuleType(traceback.__name__)
    vars(short).update({**vars(traceback), "format_stack": _format_stack})
    for device in _SEEDED:
        if getattr(device, "traceback", None) is traceback:
            patches.replace(device, "traceback", short)


def _format_stack() -> list[str]:
    """Return what `traceback.format_stack()` returns where the script was started by Python itself."""
    theirs = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_NOT_THEIRS):
            theirs.append((frame, frame.f_lineno))
        frame = frame.f_back
    theirs.reverse()
    return traceback.StackSummary.extract(iter(theirs)).format()


def source(line: str) -> str:
    """Return the text of the line that `caller` named, without its indentation; empty where it cannot be read."""
    path, _, number = line.rpartition(":")
    return linecache.getline(path, int(number)).strip() if number.isdecimal() else ""


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the user's first frame on; the whole of it when none is the user's.

    Frames of ours that called on are left out; what was raised in one of them is there.
    """
    entry = trace
    while entry is not None and not is_users(entry.tb_frame.f_code.co_filename):
        entry = entry.tb_next
    entries = []
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    theirs: TracebackType | None = None
    for each in reversed(entries):
        if theirs is None or not is_ours(each.tb_frame.f_code.co_filename):
            theirs = TracebackType(theirs, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return theirs or trace


def raised(error: BaseException) -> str:
    """Return an exception's type and message on one line; of a long one its first line and its last.

    What failed often stands in the last: numpy names the rows there, a loader's worker its own exception.
    """
    told = "".join(traceback.format_exception_only(error)).strip()
    whole = " ".join(told.split())
    if len(whole) <= _LONGEST:
        return whole
    found = told.splitlines()
    ends = dict.fromkeys((found[0], found[-1]))
    return f"{_MORE} ".join(textwrap.shorten(line, _LONGEST // len(ends), placeholder=_MORE) for line in ends)


def raised_at(trace: TracebackType | None) -> str:
    """Return `file:line` of the innermost frame of the user's code in a traceback."""
    for entry in reversed(traceback.extract_tb(trace)):
        if is_users(entry.filename):
            return f"{entry.filename}:{entry.lineno}"
    return "unknown line"
