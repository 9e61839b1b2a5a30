"""Runs the user's script as `python script.py` or `python -m module` would, and says what it raised."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from dpdoctor.spec import RunSpec
from dpdoctor.worker.base import lines


def run(spec: RunSpec) -> None:
    """Run the script as `__main__` with its own argv, directory and import path.

    Raises:
        whatever the script raises; SystemExit included.
    """
    os.chdir(spec.cwd)
    # `python -m dpdoctor.worker` put a path of ours first; `python script.py` puts the script's directory there.
    sys.path[0] = spec.cwd if spec.is_module else str(Path(spec.target).resolve().parent)
    sys.argv = [spec.target, *spec.args]
    if spec.is_module:
        runpy.run_module(spec.target, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(spec.target, run_name="__main__")


def raised_at(error: BaseException) -> str:
    """Return file and line of the script at which it raised an exception."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    return lines.raised_at(error.__traceback__)


def failure(error: BaseException) -> str:
    """Return in words what the script raised and where, with what to do about it where that is known."""
    return f"the script raised {_told(error)} ({raised_at(error)}){_way_out(error)}"


def _told(error: BaseException) -> str:
    """Return an exception's type and message on one line, as a traceback ends."""
    if isinstance(error, SyntaxError):  # of which a traceback shows the line first
        return f"{type(error).__name__}: {error.msg}"
    return lines.raised(error)


def _way_out(error: BaseException) -> str:
    """Return what to do about an error that Python alone would have raised, too, where that is known."""
    if isinstance(error, NameError) and error.name == "get_ipython":
        return "; it is a magic of the notebook: take the line out, or export the notebook without magics"
    return ""
