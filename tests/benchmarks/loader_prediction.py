"""How well the loader's prediction comes true: from one profile without workers, against profiles with other settings.

    python tests/benchmarks/loader_prediction.py

For samples/mnist_lenet.py and the three kinds of tests/benchmarks/loader_script.py, each is profiled once with
num_workers=0 and what it predicts is written to a file. Only then the script's settings are profiled themselves, in
shuffled rounds. The table has the median of the rounds. Allowed is a median error of 10% and a worst one of 25%.

A profile is taken again (`--tries`), and of all the most comparable one counts, where other processes of the machine
took more of its cores than `--quiet` (`others`), or where the cores' pace in its windows differed from that in the
profile which predicts by more than `--same`. `slower` is by what share they were slower than at their best: another
machine on the same host, with which a core is shared, shows as no process.

`error of ratio` leaves out how the machine's speed changes: there prediction and measurement are both taken relative to
num_workers=0, the prediction's in the profile that it comes from, the measurement's in its own round.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from pace import Pace  # beside this file

from dpdoctor import rundir

ROOT = Path(__file__).parents[2]
SCRIPTS = {
    "mnist_lenet": [str(ROOT / "samples/mnist_lenet.py"), "--"],
    **{kind: [str(ROOT / "tests/benchmarks/loader_script.py"), "--", kind] for kind in ("fixed", "lognormal", "io")},
}
SETTINGS = [(0, None), *((workers, factor) for workers in (1, 2) for factor in (1, 2, 4))]
Setting = tuple[int, "int | None"]


@dataclass(frozen=True)
class Profile:
    """Seconds per step, and what single's loader predicts for each setting.

    `others` are the cores that others took meanwhile, `slower` by what share they were slower than at their best.
    """

    step_s: float
    predicted: dict[Setting, dict[str, float]]
    others: float
    slower: float


def cpu_s() -> tuple[float, float]:
    """Return the CPU seconds of the whole machine, and of the children of this process that have ended."""
    machine, own = psutil.cpu_times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    idle = machine.idle + getattr(machine, "iowait", 0.0)
    return sum(machine) - getattr(machine, "guest", 0.0) - idle, own.ru_utime + own.ru_stime


def profile(script: str, setting: Setting, options: list[str], pace: Pace) -> Profile:
    """Profile a script with one setting, on one device of one thread."""
    workers, factor = setting
    target, *args = SCRIPTS[script]
    args += ["--num-workers", str(workers), *(["--prefetch-factor", str(factor)] if factor else [])]
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run"
        command = [sys.executable, "-m", "dpdoctor", "profile", target, "--modes", "single", "--no-control"]
        (machine, own), begin = cpu_s(), time.monotonic()
        subprocess.run([*command, "--quiet", *options, "--out", str(out), *args], check=True)
        wall_s = time.monotonic() - begin
        others = cpu_s()[0] - machine - (cpu_s()[1] - own)
        mode = json.loads((out / "run.json").read_text())["modes"]["single"]
        windows = [w for w in rundir.read(out).modes["single"][0].ranks[0].windows if w.kind == "measure"]
    predicted = {(p["num_workers"], p["prefetch_factor"]): p["step"] for p in mode["loader"]["predictions"]}
    slower = pace.slower(windows[0].begin_ns, windows[-1].end_ns)
    return Profile(mode["step"]["value"], predicted, others / wall_s, slower)


def comparable(taken: Callable[[], Profile], args: argparse.Namespace, first: Profile | None = None) -> Profile:
    """Return the most comparable profile, of as many as it takes to differ as little as is allowed from the first."""

    def differs(one: Profile) -> float:
        change = (1 + one.slower) / (1 + first.slower) - 1 if first else 0.0
        return max(one.others / args.quiet, abs(change) / args.same)

    found: list[Profile] = []
    while len(found) < args.tries and not (found and differs(found[-1]) <= 1):
        found.append(taken())
    return min(found, key=differs)


def words(setting: Setting) -> str:
    """Return a setting as text."""
    return f"{setting[0]} workers" + (f", prefetch {setting[1]}" if setting[1] else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    parser.add_argument("--rounds", type=int, default=2, help="profiles of each setting")
    parser.add_argument("--quiet", type=float, default=0.15, help="cores that others may take")
    parser.add_argument("--same", type=float, default=0.08, help="share by which the cores' pace may have changed")
    parser.add_argument("--tries", type=int, default=4, help="profiles taken until one is quiet and comparable")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which settings are profiled")
    parser.add_argument("--out", type=Path, default=Path("loader_predictions.json"), help="file of predictions")
    parser.add_argument("--options", default="--nproc 2 --trace-steps 0 --rounds 10 --time-budget 20")
    args = parser.parse_args()

    chance, written, lines = random.Random(args.seed), {}, []
    with_trial, without_ablations = (
        [*args.options.split(), "--ablations", ablations] for ablations in ("one_worker", "none")
    )
    with Pace() as pace:
        for script in args.scripts:
            first = comparable(partial(profile, script, (0, None), with_trial, pace), args)
            written[script] = {words(setting): found for setting, found in first.predicted.items()}
            args.out.write_text(json.dumps(written, indent=1))
            note(script, "predictions written", {(0, None): first})
            rounds: list[dict[Setting, Profile]] = []
            for number in range(args.rounds):
                order = chance.sample(SETTINGS, k=len(SETTINGS))
                taken = {setting: partial(profile, script, setting, without_ablations, pace) for setting in order}
                rounds.append({setting: comparable(take, args, first) for setting, take in taken.items()})
                note(script, f"round {number + 1}", rounds[-1])
            lines += [Line.of(script, setting, first.predicted, rounds) for setting in SETTINGS]
    report(lines)


def note(script: str, what: str, profiles: dict[Setting, Profile]) -> None:
    """Say how far it is."""
    steps = (f"{words(s)}: {1e3 * p.step_s:.2f} ms ({100 * p.slower:.0f} % slower)" for s, p in profiles.items())
    print(f"  {script}, {what}: {', '.join(steps)}", file=sys.stderr)


@dataclass(frozen=True)
class Line:
    """One setting of one script; seconds, and errors as shares of what was measured. `ratio_error` is drift-free."""

    script: str
    setting: Setting
    predicted: dict[str, float]
    step_s: float
    ratio_error: float
    others: float
    slower: float

    @classmethod
    def of(cls, script: str, setting: Setting, predicted: dict[Setting, dict[str, float]], rounds: list[Any]) -> Line:
        """Return the medians over the rounds."""
        without = (0, None)
        ratio = statistics.median(found[setting].step_s / found[without].step_s for found in rounds)
        return cls(
            script=script,
            setting=setting,
            predicted=predicted[setting],
            step_s=statistics.median(found[setting].step_s for found in rounds),
            ratio_error=predicted[setting]["value"] / predicted[without]["value"] / ratio - 1,
            others=max(found[setting].others for found in rounds),
            slower=max(found[setting].slower for found in rounds),
        )

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was measured."""
        return self.predicted["value"] / self.step_s - 1

    @property
    def interval(self) -> tuple[float, float]:
        """The prediction's; of no width where it has none."""
        return self.predicted["low"] or self.predicted["value"], self.predicted["high"] or self.predicted["value"]


def report(lines: list[Line]) -> None:
    """Print the table, and over all of it the median and the worst error."""
    print(
        f"{'script':12} {'setting':22} {'predicted':>10} {'interval':>18} {'measured':>10} {'error':>8} "
        f"{'error of ratio':>15} {'others':>7} {'slower':>8}"
    )
    for line in lines:
        low, high = line.interval
        print(
            f"{line.script:12} {words(line.setting):22} {1e3 * line.predicted['value']:7.2f} ms "
            f"{1e3 * low:7.2f} to {1e3 * high:7.2f} {1e3 * line.step_s:7.2f} ms {100 * line.error:+6.1f} % "
            f"{100 * line.ratio_error:+13.1f} % {line.others:7.2f} {100 * line.slower:6.1f} %"
        )
    inside = sum(line.interval[0] <= line.step_s <= line.interval[1] for line in lines)
    print(f"{len(lines)} predictions, {inside} measured inside of the interval")
    # The present setting is no prediction of a ratio: it is 1 on both sides.
    for what, errors in (
        ("error", [line.error for line in lines]),
        ("error of ratio", [line.ratio_error for line in lines if line.setting[0]]),
    ):
        sizes = [100 * abs(error) for error in errors]
        print(f"{what}: median {statistics.median(sizes):.1f} %, worst {max(sizes):.1f} %")


if __name__ == "__main__":
    main()
