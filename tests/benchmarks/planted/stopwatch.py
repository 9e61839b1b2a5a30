"""What is planted, timed without dpdoctor: seconds that a step loses to it on this machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median

SAMPLES = Path(__file__).parents[3] / "samples"
SLEEPS = 21
# Run in an interpreter of its own, with one thread, as a rank that is given one core.
FETCHES = """
import statistics, sys, time
import torch
import mnist_lenet
torch.set_num_threads(1)
args = mnist_lenet.parse_args()
loader = torch.utils.data.DataLoader(mnist_lenet.make_train_set(args), batch_size=args.batch_size, shuffle=True)
took = []
batches = iter(loader)
for _ in range(41):
    begin = time.perf_counter()
    next(batches)
    took.append(time.perf_counter() - begin)
print(statistics.median(took))
"""


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

    That is what the loader costs a step without workers: what is planted and what the sample's own loading takes. As
    many processes fetch at once as there are ranks, which slow each other.
    """

    def seconds(size: float) -> float:
        command = [sys.executable, "-c", FETCHES, *(argument.format(size=f"{size:g}") for argument in args)]
        at_once = [subprocess.Popen(command, cwd=SAMPLES, stdout=subprocess.PIPE, text=True) for _ in range(ranks)]
        said = [process.communicate()[0] for process in at_once]
        return mean(float(text) for text in said)

    return seconds
