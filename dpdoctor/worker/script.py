"""Runs the user's script as `python script.py` or `python -m module` would, and says what it raised and why."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path

import torch

from dpdoctor.spec import RunSpec
from dpdoctor.worker.base import lines

_HERE = Path(__file__).parent
# Where ablations act, or what they changed is computed with: our part of loaders, forwards and backward passes, and
# torch.
_TRAINING = tuple(f"{_HERE}/{part}/" for part in ("wrap", "data", "modes", "timing"))
_TORCH = f"{Path(torch.__file__).parent}/"
# Parts of torch that write what they are given.
_WRITING = tuple(f"{_TORCH}{part}" for part in ("serialization.py", "storage.py", "utils/tensorboard/"))
# No value that an ablation changes leads to these.
_NEVER = (OSError, ImportError, NameError, SyntaxError)


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


def may_be_an_ablations(error: BaseException) -> bool:
    """Return whether an ablation can be why the script raised an error.

    It changes batches, forwards, backward passes and what follows: so it can where the error came out of training, or
    of what torch or the user's own code do with its values. What a library raises elsewhere, when it saves or draws, it
    raises without the ablation as well.
    """
    if isinstance(error, _NEVER):
        return False
    files = [frame.filename for frame in traceback.extract_tb(lines.without_ours(error.__traceback__))]
    if any(name.startswith(_WRITING) for name in files):
        return False
    return not files or lines.is_users(files[-1]) or any(name.startswith((*_TRAINING, _TORCH)) for name in files)


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
