"""How large a fault of samples/mnist_lenet.py must be to cost a step so many seconds, on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

SAMPLES = Path(__file__).parents[3] / "samples"
BATCH_SIZE = 32
FAULT = "slow_transform"
# The sample's name for the transform that the fault is.
TRANSFORM = "Smooth"
# The fault computes until a clock says that it is enough, which is later than asked for; how much later is known only
# from launches, where its code and data are not always in the caches.
TRIES = 4
LEAST_SIZE = 0.001


def size_for(seconds: float, cost_s: Callable[[float], float]) -> float:
    """Return the size of the fault, in ms per image, that costs each step so many seconds.

    `cost_s` launches the script with a fault of a size, and returns what that takes of a step.
    """
    size = 1000 * seconds / BATCH_SIZE
    for _ in range(TRIES):
        size = max(LEAST_SIZE, size + 1000 * (seconds - cost_s(size)) / BATCH_SIZE)
    return float(f"{size:.4g}")
