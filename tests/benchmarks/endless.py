"""Does a script that prints for ever end? `python tests/benchmarks/endless.py [--timeout S] [--stages ...] [--flood]`.

A script comes to a stage of its run, from where on it prints and does nothing else: a line each 0.2 s or, with --flood,
as fast as it can. In mode native the last rank does, in others all. In `leaving` it has trained to its end, and in
`parent` it is the process that started the ranks. A line for each stage and mode, the modes of a stage side by side:
how long after that moment dpdoctor has ended, with its report, the size of the logs that it kept, and what it says.
Bound: twice the timeout.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = """
import os, sys, time

def print_for_ever():
    print("ENDLESS", time.monotonic(), flush=True)
    while True:
        print("still here, and going on", flush=True)
        time.sleep(0 if "flood" in sys.argv else 0.2)

stage, last = sys.argv[1], os.environ.get("RANK", "0") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1)
if stage == "starting" and last:
    print_for_ever()

import torch
import torch.distributed as dist

def train(rank, own):
    if own:
        dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 2)
    if own:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    try:
        while stage not in ("leaving", "parent") or step < 200:
            optimizer.zero_grad()
            model(torch.randn(4, 8)).pow(2).mean().backward()
            optimizer.step()
            step += 1
            if last and step == {"warmup": 20, "measure": 100, "trace": 200}.get(stage):
                print_for_ever()
    finally:
        if stage == "leaving" and last:
            print_for_ever()

def spawned(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
    train(rank, True)

if __name__ == "__main__":
    if stage == "script" and last:
        print_for_ever()
    if stage == "parent":
        import torch.multiprocessing as mp
        mp.spawn(spawned, nprocs=2)
        print_for_ever()
    train(int(os.environ.get("RANK", "0")), "own" in sys.argv)
"""
MEASURE = ("--warmup", "5", "--steps", "20", "--rounds", "1", "--trace-steps", "0")
STAGES: dict[str, tuple[str, ...]] = {
    "starting": MEASURE,
    "script": MEASURE,
    "warmup": ("--warmup", "1000000"),
    "measure": ("--warmup", "5", "--steps", "20", "--rounds", "1000"),
    "trace": ("--warmup", "5", "--steps", "20", "--rounds", "1", "--trace-steps", "3000"),
    "leaving": MEASURE,
    "parent": MEASURE,
}
MODES = ("single", "ddp", "fsdp", "native")
_BEGAN = re.compile(r"ENDLESS (\S+)")


def begin(root: Path, stage: str, mode: str, timeout_s: float, *, flood: bool) -> subprocess.Popen[bytes]:
    """Start a profile of the script in one mode."""
    script = root.parent / "endless.py"
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "dpdoctor",
        "profile",
        str(script),
        "--out",
        str(root),
        "--timeout",
        f"{timeout_s}",
    ]
    command += ["--modes", mode, "--no-baseline", "--no-control", "--ablations", "none", *STAGES[stage]]
    if mode == "native" and stage != "parent":
        command += ["--launcher", "torchrun --nproc-per-node 2 --master-port 0 --standalone"]
    elif mode not in ("single", "native"):
        command += ["--nproc", "2"]
    arguments = [stage, *(["29731"] if stage == "parent" else []), *(["own"] if mode == "native" else [])]
    with (root.parent / f"{root.name}.log").open("wb") as log:
        return subprocess.Popen(
            [*command, "--", *arguments, *(["flood"] if flood else [])],
            cwd=root.parent,
            env={**os.environ, "TMPDIR": str(root.parent)},
            stdout=log,
            stderr=log,
        )


def told(root: Path, began_s: float, ended_s: float, timeout_s: float) -> str:
    """Return what became of a run that has ended, and whether that was in time."""
    logs = [path for name in ("stdout.log", "stderr.log") for path in root.rglob(name)]
    since = [float(found[1]) for path in logs if (found := _BEGAN.search(path.read_text(errors="replace")))]
    num_bytes = sum(path.stat().st_size for path in logs)
    (mode,) = json.loads((root / "run.json").read_text())["modes"].values()
    after_s = ended_s - min(since) if since else float("nan")
    held = "held" if after_s <= 2 * timeout_s else "NOT HELD"
    reason = f"{mode['status']} {mode.get('reason') or ''}"
    return f"{held}: {after_s:5.1f} s after, {ended_s - began_s:5.1f} s in all, {num_bytes} B kept; {reason[:150]}"


def run(directory: Path, stage: str, modes: list[str], timeout_s: float, *, flood: bool) -> int:
    """Print how the modes of a stage ended, and return how many did not in time."""
    began_s = time.monotonic()
    running = {mode: begin(directory / f"{stage}-{mode}", stage, mode, timeout_s, flood=flood) for mode in modes}
    late = 0
    while running:
        time.sleep(0.1)
        for mode, process in list(running.items()):
            is_over = time.monotonic() - began_s > 8 * timeout_s
            if is_over:
                process.kill()
            if process.poll() is not None:
                del running[mode]
                line = (
                    "NOT HELD" if is_over else told(directory / f"{stage}-{mode}", began_s, time.monotonic(), timeout_s)
                )
                late += not line.startswith("held")
                print(f"{stage:9} {mode:7} {line}", flush=True)
    return late


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--flood", action="store_true")
    given = parser.parse_args()
    late = 0
    with tempfile.TemporaryDirectory(prefix="endless-") as directory:
        for stage in given.stages:
            modes = ["native"] if stage == "parent" else given.modes
            late += run(Path(directory), stage, modes, given.timeout, flood=given.flood)
    print(f"{late} did not end in time")
    return int(bool(late))


if __name__ == "__main__":
    sys.exit(main())
