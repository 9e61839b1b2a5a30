"""Does anything stay behind? `python tests/benchmarks/kill_matrix.py [--matrix] [--runs N] [--killed M] [--seed S]`.

--matrix: a script with hung loader workers and children in sessions of their own is profiled in ddp, and dpdoctor gets
SIGKILL, SIGHUP, SIGTERM and SIGINT, once and twice, in each of six stages: how long until nothing is left, with which
code it ends, and whether what was recorded can be read. --runs: so many profiles in a row, of which some are hit by a
random signal in a random process at a random moment. A line for each that is not as it should be, and one in all.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from dpdoctor import heartbeat, rundir
from dpdoctor.errors import DpDoctorError

SCRIPT = """
import signal, subprocess, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Hangs(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)

def train():
    subprocess.Popen(["sleep", "3600"], start_new_session=True)
    context = "spawn" if "spawn" in sys.argv else None
    hung = iter(DataLoader(Hangs(), num_workers=2, multiprocessing_context=context))
    while "wait" in sys.argv:
        time.sleep(1)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()
        time.sleep(0.002)

if __name__ == "__main__":
    train()
"""
TEMPORARY = "t"
MARK = "KILL_MATRIX_RUN"
MEASURE = ("--warmup", "2", "--steps", "20")
QUICK = (*MEASURE, "--rounds", "1", "--trace-steps", "0")
# In which the launcher finds a rank, and options and arguments that hold it there.
STAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "starting": (QUICK, ()),
    "script": (QUICK, ("wait",)),
    "warmup": (("--warmup", "1000000"), ("spawn",)),
    "measure": ((*MEASURE, "--rounds", "1000"), ()),
    "trace": ((*MEASURE, "--rounds", "1", "--trace-steps", "3000"), ()),
    "report": (QUICK, ()),
}
SIGNALS = (signal.SIGKILL, signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
AGAIN_S, GONE_S, LONGEST_S = 0.2, 5.0, 180.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is in shared memory, and in the temporary directory of the runs."""

    shared: frozenset[Path]

    @staticmethod
    def now() -> Surroundings:
        return Surroundings(frozenset(Path("/dev/shm").iterdir()))

    def left(self, temporary: Path) -> list[str]:
        """Return what is new since; of shared memory, what no process has, as others may use it meanwhile."""
        new = set(Path("/dev/shm").iterdir()) - self.shared
        used = b"".join(map(read, Path("/proc").glob("[0-9]*/maps"))) if new else b""
        found = [path for path in new if str(path).encode() not in used]
        return sorted(map(str, [*found, *(path for path in temporary.rglob("*") if "torchinductor_" not in str(path))]))


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def marked(number: str) -> list[int]:
    """Return the processes of one run, by their environment; zombies have none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{MARK}={number}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def profiling(
    root: Path, number: str, options: tuple[str, ...], args: tuple[str, ...]
) -> Iterator[subprocess.Popen[bytes]]:
    script = root.parent / "train.py"
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "dpdoctor",
        "profile",
        str(script),
        "--modes",
        "ddp",
        "--no-baseline",
        "--nproc",
        "2",
    ]
    with (root.parent / f"{root.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--ablations", "none", "--out", str(root), *options, "--", *args],
            env={**os.environ, MARK: number, "TMPDIR": str(root.parent / TEMPORARY)},
            cwd=root.parent,
            stdout=log,
            stderr=log,
            preexec_fn=heed_signals,  # noqa: PLW1509 - it takes no lock
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def heed_signals() -> None:
    """Let the process that calls this be ended by what nohup, or a shell in the background, ignores."""
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


def wait_for(condition: Callable[[], bool], seconds: float = LONGEST_S) -> float | None:
    """Return after how many seconds it came true; None: never."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            return None
        time.sleep(0.05)
    return time.monotonic() - began


def is_in(stage: str, root: Path) -> bool:
    if stage == "starting":
        return (root / "ddp" / "rank1").exists()
    if stage == "report":
        return (root / "ddp" / rundir.LAUNCH).exists()
    beats = [heartbeat.read(root / "ddp" / f"rank{rank}") for rank in range(2)]
    return all(beat is not None and beat.stage == stage for beat in beats)


def faults(root: Path, expected: int, code: int, number: str, before: Surroundings) -> list[str]:
    """Return what is not as it should be when dpdoctor has ended."""
    found = [] if code == expected else [f"exit code {code}, not {expected}"]
    gone = wait_for(lambda: not marked(number), GONE_S)
    if gone is None:
        found.append(f"left: {[psutil.Process(pid).cmdline()[:4] for pid in marked(number) if psutil.pid_exists(pid)]}")
    if code != -signal.SIGKILL and not (root / rundir.SUMMARY).exists():
        found.append("no run.json")
    left = before.left(root.parent / TEMPORARY)
    found += [f"left: {left}"] if left else []
    if list(root.glob("*/rank*/overlay")) and wait_for(lambda: not list(root.glob("*/rank*/overlay")), GONE_S) is None:
        found.append("left: an overlay")
    try:
        rundir.read(root)
    except DpDoctorError as error:
        found.append(str(error))
    return found


def matrix(directory: Path) -> int:
    cases = list(itertools.product(STAGES, SIGNALS, (1, 2)))
    bad = sum(bool(hit(directory, *case)) for case in cases)
    print(f"matrix: {bad} of {len(cases)} are not as they should be", flush=True)
    return bad


def hit(directory: Path, stage: str, signum: signal.Signals, times: int) -> list[str]:
    name, before = f"{stage}-{signum.name}-{times}", Surroundings.now()
    with profiling(directory / name, name, *STAGES[stage]) as process:
        wait_for(lambda: is_in(stage, directory / name) or process.poll() is not None)
        time.sleep(0.3 if stage != "report" else 0.0)
        for _ in range(times):
            process.send_signal(signum)
            time.sleep(AGAIN_S)
        code = process.wait(LONGEST_S)
        found = faults(directory / name, -signum if signum == signal.SIGKILL else 128 + signum, code, name, before)
    print(f"{name}: {'; '.join(found) or 'nothing left'}", flush=True)
    return found


def runs(directory: Path, number: int, killed: int, seed: int) -> int:
    draw, before = random.Random(seed), Surroundings.now()
    chosen = set(draw.sample(range(number), killed))
    bad = sum(bool(run(directory / f"run-{index}", draw if index in chosen else None)) for index in range(number))
    left = before.left(directory / TEMPORARY)
    overlays = list(directory.glob("run-*/*/rank*/overlay"))
    print(f"{number} runs, {killed} hit: {bad} with faults; left behind: {left} {overlays}", flush=True)
    return bad + len(left) + len(overlays)


def run(root: Path, draw: random.Random | None) -> list[str]:
    """Profile once; with `draw`, some process of it gets some signal at some moment."""
    with profiling(root, root.name, QUICK, ()) as process:
        if draw is not None:
            time.sleep(draw.uniform(0.5, 8.0))
            with contextlib.suppress(psutil.Error):
                tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
                victim, signum = draw.choice(tree), draw.choice(SIGNALS)
                print(f"{root.name}: {signum.name} to {' '.join(victim.cmdline())[:90]}", flush=True)
                victim.send_signal(signum)
        code = process.wait(LONGEST_S)
        gone = wait_for(lambda: not marked(root.name), GONE_S)
    found = [f"left: {marked(root.name)}"] if gone is None else []
    found += [f"exit code {code}"] if draw is None and code else []
    if found:
        print(f"{root.name}: {'; '.join(found)}", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--killed", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kill-matrix-") as directory:
        Path(directory, TEMPORARY).mkdir()
        bad = matrix(Path(directory)) if given.matrix else 0
        bad += runs(Path(directory), given.runs, given.killed, given.seed) if given.runs else 0
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
