"""Is dpdoctor's own cost what it says? Scripts plain, with a stopwatch of ten lines, beside the same ones profiled.

    python tests/benchmarks/own_cost.py [KIND ...]

For each kind of script: the step of the plain runs before and after the profile, the profiled step over it, and that
ratio as the profile has it, with its interval. On a quiet machine, or the intervals are wide.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from dpdoctor import rundir

SCRIPT = Path(__file__).with_name("own_cost_script.py")
KINDS = ("none", "seeds", "stats", "exists", "lists", "loads", "tensors", "json", "logs", "checkpoints", "temporary")
# Knows nothing of dpdoctor: prints the mean seconds of the steps between the 100th and the last. The script runs in
# the outermost frame but one: what torch formats of the stack when it is seeded takes the longer, the deeper that is.
STOPWATCH = """
import os, sys, time
import torch
torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
from torch.optim.optimizer import register_optimizer_step_post_hook
ends, begun = [], time.monotonic()
def ended(*_):
    ends.append(time.perf_counter())
    if len(ends) > 120 and time.monotonic() - begun > 6:
        print((ends[-1] - ends[100]) / (len(ends) - 101), flush=True)
        os._exit(0)
register_optimizer_step_post_hook(ended)
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(sys.argv[0])
exec(compile(open(sys.argv[0]).read(), sys.argv[0], "exec"))
"""


def plain_s(kind: str, home: Path) -> float:
    """Return the mean seconds of a step of the plain script, which really writes into `home`."""
    command = [sys.executable, "-c", STOPWATCH, str(SCRIPT), kind]
    return float(subprocess.run(command, cwd=home, capture_output=True, text=True, check=True).stdout)


def profiled(kind: str, home: Path) -> tuple[float, dict[str, float | None]]:
    """Return the mean seconds of a steady step in the profile's windows, and what it says that watching takes of it."""
    options = ("--modes", "single", "--nproc", "2", "--trace-steps", "0", "--ablations", "none", "--rounds", "6")
    command = [sys.executable, "-m", "dpdoctor", "profile", str(SCRIPT), *options, "--quiet", "--out", "run"]
    subprocess.run([*command, "--", kind], cwd=home, check=True)
    (launch,) = rundir.read(home / "run").modes["single"]
    steps = [step.duration_ns for step in launch.ranks[0].steps if step.counted and not step.epoch_edge]
    mode = json.loads((home / "run" / rundir.SUMMARY).read_text())["modes"]["single"]
    return statistics.mean(steps) * 1e-9, mode["observer_overhead"]


def as_ratio(share: float | None) -> float:
    """Return watched over bare, given what watching takes of a watched step."""
    return float("nan") if share is None else 1 / (1 - min(share, 0.99))


def main() -> None:
    """Print a line per kind of script."""
    print(f"{'script':12} {'plain ms':>16} {'profiled':>9} {'ratio':>7} {'as printed':>22}")
    for kind in sys.argv[1:] or KINDS:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
            home = Path(directory)
            before = plain_s(kind, home)
            watched, cost = profiled(kind, home)
            after = plain_s(kind, home)
        ratio = watched / statistics.mean((before, after))
        low, value, high = (as_ratio(cost[name]) for name in ("low", "value", "high"))
        plain = f"{before * 1e3:.2f}, {after * 1e3:.2f}"
        printed = f"{value:.2f} ({low:.2f} to {high:.2f})"
        print(f"{kind:12} {plain:>16} {watched * 1e3:>9.2f} {ratio:>7.2f} {printed:>22}", flush=True)


if __name__ == "__main__":
    main()
