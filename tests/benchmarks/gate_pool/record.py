"""Record the pool of launches that gates are replayed over.

    python -m tests.benchmarks.gate_pool.record --pairs 60

From the top of a checkout, on a machine that does nothing else. Pairs of launches of samples/mnist_lenet.py, `ddp` on
two ranks, base head head base: 10 pairs for the calibration, then as many as asked for of the same script twice, and
with head slower by 10 and by 5%. The fault's sizes are chosen at the beginning by the step of this machine; one that
is not equally fast does not go on with the pool. Of a launch only its windows and some steps are kept, of a disturbed
pair nothing. Interrupted, the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

from dpdoctor import __version__, units
from dpdoctor.gate.calibration import LEAST_PAIRS
from dpdoctor.launch import machine

from . import planting, pool
from .launching import MODE, SCRIPT, launch
from .pool import KINDS, POOL, Launched, Origin, Side

FIRST_LAUNCHES = 4
# Launches of one machine differ by less, and those of another may be called the same CPU.
MOST_APART = 0.25


def begin(path: Path, rounds: int) -> None:
    """Measure the step of this machine, choose the sizes of the fault, and begin a pool."""
    step_s = median(launch(0.0, rounds).step_s for _ in range(FIRST_LAUNCHES))
    sizes = {kind: sized(share * step_s, rounds) if share else 0.0 for kind, share in KINDS.items()}
    here = machine.fingerprint(SCRIPT, machine.package_versions())
    origin = Origin(
        created=f"{datetime.now(timezone.utc):%Y-%m-%d}",
        command=(f"samples/{SCRIPT.name}", "--modes", MODE, "--nproc", "2"),
        dpdoctor=__version__,
        cpu=here.cpu,
        cores=here.cores,
        system=here.system,
        python=here.python,
        torch=here.packages.get("torch", ""),
        rounds=rounds,
        step_s=step_s,
        sizes=sizes,
    )
    pool.create(path, origin)
    print(f"a step takes {units.seconds(step_s)}; faults in ms per image: {sizes}", flush=True)


def sized(seconds: float, rounds: int) -> float:
    """Return the size of the fault that takes so long of a step."""
    return planting.size_for(seconds, lambda size: launch(size, rounds).fault_s)


def go_on(path: Path, wanted: dict[str, int]) -> None:
    """Record what is missing of every kind, one after the other, after a pair that is thrown away.

    Raises:
        SystemExit: a step does not take here what it took where the pool began.
    """
    found = pool.read(path)
    session = found.last_session + 1
    missing = [(kind, range(len(found.of(kind)), number)) for kind, number in wanted.items()]
    if not any(numbers for _, numbers in missing):
        return
    step_s = median(launch(0.0, found.origin.rounds).step_s for _ in range(2))
    if abs(step_s / found.origin.step_s - 1) > MOST_APART:
        began = units.seconds(found.origin.step_s)
        raise SystemExit(f"a step takes {units.seconds(step_s)} here, {began} where {path} began: record a new one")
    for kind, numbers in missing:
        for number in numbers:
            began_s = time.monotonic()
            pool.append(path, pair(found.origin, kind, session, number))
            took = units.seconds(time.monotonic() - began_s)
            print(f"{kind} {number + 1} of {wanted[kind]}: {took}", file=sys.stderr, flush=True)


def pair(origin: Origin, kind: str, session: int, number: int) -> list[Launched]:
    """Launch a pair, base first in every other one; as in a gate, one in which a launch was disturbed is replaced."""
    sides: tuple[Side, Side] = ("head", "base") if number % 2 else ("base", "head")
    while True:
        kept = [(side, launch(origin.sizes[kind] if side == "head" else 0.0, origin.rounds)) for side in sides]
        disturbed = [found.disturbed for _, found in kept if found.disturbed]
        if not disturbed:
            break
        print(f"{kind} {number + 1} is launched again: {'; '.join(disturbed)}", file=sys.stderr, flush=True)
    return [
        Launched(
            kind=kind,
            session=session,
            pair=number,
            side=side,
            step_s=found.step_s,
            windows=found.windows,
            steps=found.steps,
        )
        for side, found in kept
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60, help="of each kind but the calibration")
    parser.add_argument("--rounds", type=int, default=10, help="of half a second that a launch is measured for")
    parser.add_argument("--out", type=Path, default=POOL)
    args = parser.parse_args()
    if not args.out.exists():
        begin(args.out, args.rounds)
    go_on(args.out, {kind: LEAST_PAIRS if kind == "calibration" else args.pairs for kind in KINDS})


if __name__ == "__main__":
    main()
