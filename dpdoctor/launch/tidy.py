"""What is left to do in the directory of a launch when all its processes have ended.

The launcher does it; where it was killed, the keepers of its ranks do: `python -m dpdoctor.launch.tidy DIRECTORY`.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from dpdoctor import rundir


def tidy(directory: Path) -> None:
    """Remove what was needed only while ranks ran."""
    (directory / rundir.RENDEZVOUS).unlink(missing_ok=True)
    for overlay in directory.glob(f"rank*/{rundir.OVERLAY}"):
        shutil.rmtree(overlay, ignore_errors=True)


if __name__ == "__main__":
    tidy(Path(sys.argv[1]))
