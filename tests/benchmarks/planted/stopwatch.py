"""What is planted, timed without dpdoctor: seconds that a step loses to it on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

SAMPLES = Path(__file__).parents[3] / "samples"
PLAIN_TRAINING = Path(__file__).with_name("plain_training.py")
SLEEPS = 21


def slept(count: int) -> Callable[[float], float]:
    """Return a function that gives the seconds that `count` sleeps of so many ms take: longer than asked for."""

    def seconds(size: float) -> float:
        took = []
        for _ in range(SLEEPS):
            begin = time.perf_counter()
            time.sleep(size / 1000)
            took.append(time.perf_counter() - begin)
        return count * median(took)

    return seconds


def fetched(args: Sequence[str], *, ranks: int = 1) -> Callable[[float], float]:
    """Return a function that gives the seconds of a fetch of samples/mnist_lenet.py with these arguments.

    That is what the loader costs a step without workers: what is planted and what the sample's own loading takes. It is
    timed in a plain loop that trains on so many ranks: beside another rank, and after a step of training, a fetch takes
    longer than it does alone.
    """

    def seconds(size: float) -> float:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command += [str(PLAIN_TRAINING), *(argument.format(size=f"{size:g}") for argument in args)]
        environment = {**os.environ, "PYTHONPATH": str(SAMPLES), "OMP_NUM_THREADS": "1"}
        return float(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)

    return seconds
