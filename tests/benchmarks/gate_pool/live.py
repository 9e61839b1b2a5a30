"""Gate real checkouts, several times each, and say how each gate ended and how long it took.

    python -m tests.benchmarks.gate_pool.live --gates 3 --out DIR

From the top of a checkout, on a machine that does nothing else and has a pool. Head is the samples as they are, or with
the pool's fault as the default of samples/mnist_lenet.py. Calibrates first; interrupted, the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dpdoctor import rundir, units

from . import pool
from .planting import FAULT, SAMPLES
from .pool import POOL

SCRIPT = "mnist_lenet.py"
DONE = "live.jsonl"
NO_FAULT = "default=Fault()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Gates of one kind: what is planted in head, options of the gate, and what must come of it."""

    head: str
    options: tuple[str, ...] = ()
    expected: str


KINDS = {
    "same": Kind(head="same", expected="pass"),
    "10% slower": Kind(head="slower_10", expected="regressed"),
    "5% slower, --tolerance 2": Kind(head="slower_5", options=("--tolerance", "2"), expected="regressed"),
    "same, --quick": Kind(head="same", options=("--quick",), expected="pass"),
    "same, --exact": Kind(head="same", options=("--exact",), expected="pass"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """How one gate ended; `pairs` that count."""

    kind: str
    number: int
    outcome: str
    reason: str
    pairs: int
    seconds: float


def checkouts(root: Path, sizes: dict[str, float]) -> None:
    """Make base, and a head of each kind."""
    for name in ("base", *sorted({kind.head for kind in KINDS.values()})):
        path = root / name
        if path.exists():
            continue
        shutil.copytree(SAMPLES, path, ignore=shutil.ignore_patterns("__pycache__"))
        if sizes.get(name):
            faults = path / "faults.py"
            text = faults.read_text()
            if text.count(NO_FAULT) != 1:
                raise ValueError(f"{faults} does not hold once: {NO_FAULT}")
            faults.write_text(text.replace(NO_FAULT, f'default=Fault("{FAULT}", {sizes[name]:g})'))


def dpdoctor(*args: str, cwd: Path) -> tuple[int, float]:
    """Run a verb; return its exit code and the seconds that it took."""
    begin = time.monotonic()
    code = subprocess.run([sys.executable, "-m", "dpdoctor", *args], cwd=cwd, check=False).returncode
    return code, time.monotonic() - begin


def calibrated(root: Path) -> None:
    """Calibrate in base, unless that was done."""
    if (root / "kept").exists():
        return
    shutil.rmtree(root / "calibrating", ignore_errors=True)
    out = ("--calibrations", str(root / "kept"), "--out", str(root / "calibrating"))
    code, took = dpdoctor("calibrate", *out, "--quiet", SCRIPT, cwd=root / "base")
    if code:
        raise RuntimeError(f"dpdoctor calibrate ended with {code}")
    print(f"calibrated in {units.seconds(took)}", flush=True)


def gated(root: Path, name: str, number: int) -> Gated:
    """Gate once."""
    kind = KINDS[name]
    out = root / "gate"
    shutil.rmtree(out, ignore_errors=True)
    options = ("--base", "base", "--head", kind.head, *kind.options, "--out", "gate", "--quiet")
    if "--exact" not in kind.options:
        options += ("--calibrations", "kept")
    _, took = dpdoctor("gate", *options, SCRIPT, cwd=root)
    result = json.loads((out / "gate.json").read_text())
    judged = (result["modes"] or result["exact"]).get("ddp")
    pairs = sum(pair["replaced"] is None for pair in judged.get("pairs", ())) if judged else 0
    reason = judged["reason"] if judged else str(result["refusals"])
    return Gated(
        kind=name, number=number, outcome=result["outcome"], reason=reason, pairs=pairs, seconds=round(took, 1)
    )


def missing(root: Path, gates: int) -> Iterator[tuple[str, int]]:
    """Yield the gates that are still to be run."""
    done = {(one.kind, one.number) for one in rundir.read_lines(root / DONE, Gated)}
    yield from ((name, number) for number in range(gates) for name in KINDS if (name, number) not in done)


def table(found: tuple[Gated, ...]) -> str:
    """Return the Markdown table: one line per gate."""
    lines = ["| gate | outcome | pairs | took | reason |", "| --- | --- | --- | --- | --- |"]
    for name, kind in KINDS.items():
        for one in (one for one in found if one.kind == name):
            outcome = one.outcome if one.outcome == kind.expected else f"**{one.outcome}**"
            lines.append(f"| {name} | {outcome} | {one.pairs} | {units.seconds(one.seconds)} | {one.reason} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gates", type=int, default=3, help="of each kind")
    parser.add_argument("--pool", type=Path, default=POOL, help="whose sizes of the fault are planted")
    parser.add_argument("--out", type=Path, required=True, help="folder; a begun one is continued")
    args = parser.parse_args()
    root = args.out.resolve()
    root.mkdir(parents=True, exist_ok=True)
    checkouts(root, pool.read(args.pool).origin.sizes)
    calibrated(root)
    for name, number in missing(root, args.gates):
        rundir.append_lines(root / DONE, [gated(root, name, number)])
    print(table(rundir.read_lines(root / DONE, Gated)))


if __name__ == "__main__":
    main()
