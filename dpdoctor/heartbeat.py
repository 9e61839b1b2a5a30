"""The sign of life of a rank: a few integers in a memory-mapped file.

Written at every step for the price of a memory write, readable while the rank lives, after it was killed, and
without its help.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec

FILE = "heartbeat"
# In an experiment one thing is switched off: what it trains per second is not what the script does.
EXPERIMENT = "experiment"
STAGES = ("starting", "script", "warmup", "proof", "measure", EXPERIMENT, "trace", "finishing", "done")

_LAYOUT = struct.Struct("=7q")
_PID, _STAGE, _STEP, _SAMPLES, _WINDOW, _AT, _PASSES = range(7)


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """The last sign of life: `at_ns` is the host's monotonic clock, `window` counts windows from 0.

    `passes` are the backward passes that ended before the first step began.
    """

    pid: int
    stage: str
    step: int
    samples: int
    window: int
    at_ns: int
    passes: int = 0


class Heartbeat:
    """The writing end, held by the rank."""

    def __init__(self, directory: Path, pid: int, clock: Callable[[], int]) -> None:
        path = directory / FILE
        path.write_bytes(bytes(_LAYOUT.size))
        with path.open("r+b") as file:
            self._cells = memoryview(mmap.mmap(file.fileno(), _LAYOUT.size)).cast("q")
        self._clock = clock
        self._cells[_PID] = pid
        self.beat(0, 0)

    def enter(self, stage: str, window: int = 0) -> None:
        """Enter a stage, one of STAGES."""
        cells = self._cells
        cells[_STAGE], cells[_WINDOW], cells[_AT] = STAGES.index(stage), window, self._clock()

    @property
    def stage(self) -> str:
        """Return the present stage."""
        return STAGES[self._cells[_STAGE]]

    def beat(self, step: int, samples: int, at_ns: int | None = None) -> None:
        """Show that `step` steps and `samples` samples are done, at `at_ns` of the clock; None: now."""
        cells = self._cells
        cells[_STEP], cells[_SAMPLES], cells[_AT] = step, samples, self._clock() if at_ns is None else at_ns

    def backward_ended(self) -> None:
        """Count a backward pass; it is no progress by itself."""
        self._cells[_PASSES] += 1


def read(directory: Path) -> Beat | None:
    """Return the last beat of the rank whose directory this is; None before its first."""
    try:
        data = (directory / FILE).read_bytes()
    except OSError:
        return None
    if len(data) < _LAYOUT.size:
        return None
    pid, stage, step, samples, window, at_ns, passes = _LAYOUT.unpack(data[: _LAYOUT.size])
    if not pid or not 0 <= stage < len(STAGES):
        return None
    return Beat(pid=pid, stage=STAGES[stage], step=step, samples=samples, window=window, at_ns=at_ns, passes=passes)
