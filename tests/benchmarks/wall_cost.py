"""What does a script pay for what keeps its files? `python tests/benchmarks/wall_cost.py [--rounds N]`.

A process of its own per round, plain and behind each wall, in turns, as a rank stands there: the kernel's overlay,
Landlock, and none, with Python's functions diverted. CPU time of one thread: opening, reading and closing a file,
asking for its size, and a training step that reads a batch of 32 files. The least of many calls, the median of the
rounds, and the ratio to plain.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from dpdoctor.spec import WALLS

PLAIN = "plain"
CHILD = """
import json, os, sys, time, timeit
from pathlib import Path
from dpdoctor.spec import ModeSpec, RunSpec, WorkerTask

wall, home, own = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
stands = wall
if wall != "plain":
    from dpdoctor.worker import protection
    mode = ModeSpec(name="single", world_size=1, num_devices=1, distributed=False, batch_rule="per-device")
    spec = RunSpec(target=str(home / "train.py"), cwd=str(home), modes=(mode,), requested_modes=("single",),
                   threads_per_device=1, wall=wall)
    found = protection.protect(WorkerTask(spec=spec, mode=mode, directory=str(own)), 0)
    stands = found.by
import torch
if wall != "plain" and found.wall is None:
    from dpdoctor.worker.overlay import files
    from dpdoctor.worker.overlay.overlay import Overlay
    from dpdoctor.worker.overlay.territory import Territory
    from dpdoctor.worker.base.patches import Patches
    files.divert(Patches(for_children=True), Overlay(own / "overlay", Territory(own, [home]).is_free))
torch.set_num_threads(1)
os.chdir(home)
Path("written").write_text("1")

def read(number):
    with open(f"{number}.bin", "rb") as file:
        return torch.frombuffer(bytearray(file.read()), dtype=torch.float32)

model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

def step():
    optimizer.zero_grad()
    model(torch.stack([read(number) for number in range(32)])).square().mean().backward()
    optimizer.step()

def least_us(call, calls, rounds):
    return 1e6 * min(timeit.repeat(call, number=calls, repeat=rounds, timer=time.thread_time)) / calls

costs = {"open, read, close": least_us(lambda: read(0), 200, 20), "stat": least_us(lambda: os.stat("0.bin"), 200, 20),
         "step of 32 files": least_us(step, 5, 40)}
print(json.dumps([stands, costs]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    walls = (PLAIN, *WALLS)
    found: dict[str, list[dict[str, float]]] = {wall: [] for wall in walls}
    stood: dict[str, str] = {}
    # Not below the temporary directory, in which compiled code may write.
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        home = Path(directory, "home")
        home.mkdir()
        for number in range(32):
            (home / f"{number}.bin").write_bytes(bytes(1024))
        for index in range(rounds):
            for wall in walls if index % 2 else reversed(walls):
                own = Path(directory, f"{wall}-{index}")
                (own / "rank0").mkdir(parents=True)
                command = [sys.executable, "-c", CHILD, wall, str(home), str(own)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                stood[wall], costs = json.loads(done.stdout)
                found[wall].append(costs)
    for wall in walls:
        cells = []
        for name in found[PLAIN][0]:
            us, bare_us = (statistics.median(costs[name] for costs in found[each]) for each in (wall, PLAIN))
            cells.append(f"{name} {us:7.2f} us ({us / bare_us:.2f}x)")
        print(f"{wall:9} {stood[wall]:9} {', '.join(cells)}")


if __name__ == "__main__":
    main()
