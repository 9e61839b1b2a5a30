"""Forked ranks beside new ones: whether they train as fast, how much launches differ, what is saved.

    python tests/benchmarks/forked_launches.py --pairs 12

Launches of a sample by turns, new and forked, on the CPU: the ratio of their step times with a 95% interval, how much
launches of each kind differ, and the ratio of the time that a launch takes from the first line to the last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dpdoctor import rundir
from dpdoctor.analysis.base import stats
from dpdoctor.launch import forkserver

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "mnist_lenet.py"
OPTIONS = (
    "--no-baseline",
    "--ablations",
    "none",
    "--trace-steps",
    "0",
    "--warmup",
    "10",
    "--steps",
    "30",
    "--rounds",
    "8",
)


def launch(mode: str, root: Path, servers: str | None) -> tuple[float, float]:
    """Return the seconds of a step, and those of the whole command."""
    environment = {name: value for name, value in os.environ.items() if name != forkserver.DIRECTORY_VARIABLE}
    if servers:
        environment[forkserver.DIRECTORY_VARIABLE] = servers
    command = [sys.executable, "-m", "dpdoctor", "profile", str(SAMPLE), "--modes", mode, *OPTIONS, "--out", str(root)]
    began = time.monotonic()
    subprocess.run([*command, "--quiet", "--", "--epochs", "1000"], cwd=root.parent, env=environment, check=True)
    whole_s = time.monotonic() - began
    return json.loads((root / rundir.SUMMARY).read_text())["modes"][mode]["step"]["value"], whole_s


def spread(log_steps: list[float]) -> str:
    """Return the standard deviation between launches, relative, with its interval for normal deviations."""
    from scipy.stats import chi2

    n, deviation = len(log_steps) - 1, float(np.std(log_steps, ddof=1))
    low, high = (deviation * (n / chi2.ppf(q, n)) ** 0.5 for q in (0.975, 0.025))
    return f"{100 * deviation:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--mode", default="ddp", choices=("single", "ddp", "fsdp"))
    args = parser.parse_args()
    new, forked = [], []
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory(prefix="dpdoctor-") as servers:
        launch(args.mode, Path(directory, "first"), servers)
        for number in range(args.pairs):
            kinds = [(new, None, "new"), (forked, servers, "forked")]
            for found, where, name in kinds if number % 2 else kinds[::-1]:
                found.append(launch(args.mode, Path(directory, f"{name}{number}"), where))
    steps = [np.log([step for step, _ in found]) for found in (new, forked)]
    ratio = stats.mean_interval((steps[1] - steps[0]).tolist(), "ratio")
    assert ratio.value is not None
    assert ratio.low is not None
    assert ratio.high is not None
    percent = [100 * (np.exp(value) - 1) for value in (ratio.value, ratio.low, ratio.high)]
    whole = np.median([seconds for _, seconds in forked]) / np.median([seconds for _, seconds in new])
    print(f"{args.mode}: a step of a forked launch takes {percent[0]:+.1f} % ({percent[1]:+.1f} to {percent[2]:+.1f})")
    print(
        f"launches differ by {spread(steps[0].tolist())} where they are new, {spread(steps[1].tolist())} where forked"
    )
    print(f"a forked launch takes {whole:.2f} of the time of a new one")


if __name__ == "__main__":
    main()
