"""`python -m dpdoctor.worker`: what the launcher, or torchrun, starts once per rank."""

import os
import sys

from dpdoctor.worker.ending import die_with_parent  # before torch

if __name__ == "__main__":
    die_with_parent()  # before anything that takes its time

import msgspec

from dpdoctor import redact
from dpdoctor.spec import TASK_VARIABLE, WorkerTask
from dpdoctor.worker.protection import protect

if __name__ == "__main__":
    task = msgspec.json.decode(os.environ[TASK_VARIABLE], type=WorkerTask)
    redact.learn(task.spec.args, os.environ)
    protection = protect(task, 0 if task.bare else int(os.environ["RANK"]))  # before torch, which starts threads
    if task.bare:
        from dpdoctor.worker import bare

        sys.exit(bare.main(task, protection))
    from dpdoctor.worker import rank

    sys.exit(rank.main(task, protection))
