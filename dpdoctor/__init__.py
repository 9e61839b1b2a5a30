"""dpdoctor: profile and diagnose the throughput of data-parallel training in PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpdoctor.version import __version__

if TYPE_CHECKING:
    import os

    from dpdoctor.report.formats.notebook import LoadedRun

__all__ = ["__version__", "load"]


def load(run_dir: str | os.PathLike[str]) -> LoadedRun:
    """Return the run in a directory that `dpdoctor profile` or `analyze` made, analysed anew; nothing is written.

    A notebook shows what is returned as a summary; `.summary` has the figures of run.json, `.analysis` everything.

    Raises:
        RunDirectoryError: it is no run directory, is damaged, or was written by a version with another schema.
    """
    # Imports late: whoever imports the package, a rank for one, must not pay for numpy and scipy.
    from pathlib import Path

    from dpdoctor import rundir
    from dpdoctor.report.formats.notebook import LoadedRun
    from dpdoctor.rules import diagnosed

    return LoadedRun(analysis=diagnosed(rundir.read(Path(run_dir))))
