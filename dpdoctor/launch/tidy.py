"""What is left to do in the directory of a launch when all its processes have ended.

The launcher does it; where it was killed, the keepers of its ranks do: `python -m dpdoctor.launch.tidy DIRECTORY`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path

import msgspec

from dpdoctor import redact, rundir
from dpdoctor.errors import OutputError
from dpdoctor.spec import TASK_VARIABLE, WorkerTask


def tidy(directory: Path, *, keeps_logs: bool = False) -> None:
    """Remove what was needed only while ranks ran, and replace secrets in what they printed.

    `keeps_logs`: of long logs all is kept, as it is somebody's own job that printed them.
    """
    (directory / rundir.RENDEZVOUS).unlink(missing_ok=True)
    for place in (directory, *directory.glob("rank*"), *directory.glob(f"{rundir.WORLDS}/*/rank*")):
        for scratch in (rundir.OVERLAY, rundir.COPIES):
            shutil.rmtree(place / scratch, ignore_errors=True)
        for log in (place / name for name in (rundir.STDOUT, rundir.STDERR, rundir.STACKS)):
            if log.exists():
                with contextlib.suppress(OutputError):  # the disk is full, say, and a run is more than its logs
                    rundir.redact_log(log, whole=keeps_logs)


if __name__ == "__main__":
    task = msgspec.json.decode(os.environ[TASK_VARIABLE], type=WorkerTask)
    redact.learn(task.spec.args, os.environ)
    tidy(Path(sys.argv[1]))
