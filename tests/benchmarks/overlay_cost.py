"""What does a script pay for the overlay? Each function bare and diverted, before and after the script wrote a file.

    python tests/benchmarks/overlay_cost.py

CPU time of this thread, the least of many rounds in which bare and diverted take turns; ratios are diverted to bare.
"""

from __future__ import annotations

import os
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.overlay import files
from dpdoctor.worker.overlay.overlay import Overlay
from dpdoctor.worker.overlay.territory import Territory

ROUNDS, CALLS = 40, 100
COSTS: dict[str, Callable[[], object]] = {
    "os.stat": lambda: os.stat("old"),  # noqa: PTH116
    "os.path.exists": lambda: os.path.exists("old"),  # noqa: PTH110
    "os.path.exists, nothing there": lambda: os.path.exists("nothing"),  # noqa: PTH110
    "Path.exists": lambda: Path("old").exists(),
    "os.access": lambda: os.access("old", os.R_OK),
    "os.listdir": lambda: os.listdir("data"),  # noqa: PTH208
    "open and close": lambda: open("old").close(),  # noqa: PTH123
    "np.load": lambda: np.load("array.npy"),
    "torch.manual_seed": lambda: torch.manual_seed(0),
}
STATES = {
    "before any write": lambda: None,
    "after a new file": lambda: Path("new").write_text(""),
    "after a changed file": lambda: Path("changed").write_text(""),
}


def least_s(call: Callable[[], object]) -> float:
    """Return the CPU seconds of one call."""
    return timeit.timeit(call, number=CALLS, timer=time.thread_time) / CALLS


def main() -> None:
    """Print a line per function: bare microseconds, then a ratio per state of the overlay."""
    # Not below the temporary directory, in which new files are free.
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as home, tempfile.TemporaryDirectory() as own:
        back = Path.cwd()
        os.chdir(home)
        for name in ("old", "changed"):
            Path(name).write_text("")
        Path("data").mkdir()
        np.save("array.npy", np.zeros((64, 64)))
        overlay = Overlay(Path(own, "overlay"), Territory(Path(own), [Path(home)]).is_free)
        ratios: dict[str, list[float]] = {name: [] for name in COSTS}
        bare = dict.fromkeys(COSTS, float("inf"))
        for number in range(len(STATES)):
            diverted = dict.fromkeys(COSTS, float("inf"))
            for _ in range(ROUNDS):
                for name, call in COSTS.items():
                    bare[name] = min(bare[name], least_s(call))
                patches = Patches(for_children=True)
                files.divert(patches, overlay)
                [*STATES.values()][number]()
                for name, call in COSTS.items():
                    diverted[name] = min(diverted[name], least_s(call))
                patches.undo()
            for name in COSTS:
                ratios[name].append(diverted[name] / bare[name])
        os.chdir(back)
        overlay.discard()
    print(f"{'':30} {'bare':>9}  " + "  ".join(STATES))
    for name, found in ratios.items():
        cells = "  ".join(f"{ratio:{len(state)}.2f}" for ratio, state in zip(found, STATES, strict=True))
        print(f"{name:30} {bare[name] * 1e6:6.2f} us  {cells}")


if __name__ == "__main__":
    main()
