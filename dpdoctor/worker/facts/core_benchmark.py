"""How fast a rank's core computes right now: what tells a slow core from a slow script."""

from __future__ import annotations

import statistics
import time

# About 0.2 ms of integer arithmetic in the processor's cache, which never lets go of the interpreter.
_MODULUS = (1 << 1024) - 159
_EXPONENT = (1 << 64) - 1
_TIMES = 5


def core_benchmark_ns() -> int:
    """Return the CPU time in ns that a fixed piece of arithmetic takes on this core, the median of some; it takes 1 ms.

    It is longer on a lower clock, and while something else computes on the core's other hardware thread. What the
    thread waits for a core is not in it.
    """
    taken = []
    for _ in range(_TIMES):
        begin_ns = time.thread_time_ns()
        pow(3, _EXPONENT, _MODULUS)
        taken.append(time.thread_time_ns() - begin_ns)
    return statistics.median_high(taken)
