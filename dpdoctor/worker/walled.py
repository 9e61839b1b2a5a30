"""`python -m dpdoctor.worker.walled`: becomes a command that dies with dpdoctor, with a wall around the user's files.

One wall for all processes of the command: what one rank writes, the others read.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from dpdoctor.spec import NO_WALL, TASK_VARIABLE, WorkerTask
from dpdoctor.worker import protection
from dpdoctor.worker.ending import die_with_parent
from dpdoctor.worker.wall import NoWallError


def main(task: WorkerTask, command: list[str]) -> int:
    """Become the command; return an exit code only where that cannot be."""
    if not task.spec.go_on:
        die_with_parent()
    if not (task.spec.allow_writes or task.spec.go_on):
        try:
            protection.overlay(task, Path(task.directory))
        except NoWallError as error:
            sys.stderr.write(f"{NO_WALL}{error}")
            return 1
    os.chdir(task.spec.cwd)
    return os.execvp(command[0], command)


if __name__ == "__main__":
    # The command's own environment has none: it may start dpdoctor itself.
    task = msgspec.json.decode(os.environ.pop(TASK_VARIABLE), type=WorkerTask)
    sys.exit(main(task, sys.argv[1:]))
