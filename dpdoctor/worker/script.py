"""Runs the user's script as `python script.py` or `python -m module` would."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from dpdoctor.spec import RunSpec


def run(spec: RunSpec) -> None:
    """Run the script as `__main__` with its own argv, directory and import path.

    Raises:
        whatever the script raises; SystemExit included.
    """
    os.chdir(spec.cwd)
    # `python -m dpdoctor.worker` put a path of ours first; `python script.py` puts the script's directory there.
    sys.path[0] = spec.cwd if spec.is_module else str(Path(spec.target).parent)
    sys.argv = [spec.target, *spec.args]
    if spec.is_module:
        runpy.run_module(spec.target, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(spec.target, run_name="__main__")
