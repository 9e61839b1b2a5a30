"""How large a report is, and how long it takes to be built and opened: a run of few ranks, and one of many.

    python tests/benchmarks/report_size.py

Two runs are simulated with steps, windows, ablations, batches, samples and traces of every rank: 8 and 1,024 ranks, 200
steps each. Bounds: the page has at most 2.5 MB and 6 MB, plotly.js included; the large one is built (analyse,
diagnose, render) in at most 20 s and 1 GB of memory, and its first screen is painted within 2 s of opening in headless
Chromium. Ends with 1 where a bound is broken.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from first_paint import CHROMIUM, first_paint_s
from simulated import directory

from dpdoctor import units

STEPS = 200
MB, GB = 1e6, 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The most that a report of so many ranks may take; None: not bounded."""

    page_bytes: float
    build_s: float | None = None
    peak_bytes: float | None = None
    paint_s: float | None = None


BOUNDS = {
    8: Bounds(page_bytes=2.5 * MB),
    1024: Bounds(page_bytes=6 * MB, build_s=20.0, peak_bytes=1 * GB, paint_s=2.0),
}


def measure(num_ranks: int, bounds: Bounds, folder: Path, modes: list[str]) -> bool:
    """Print what the report of a run takes; return whether that is within its bounds."""
    root, report = folder / f"run{num_ranks}", folder / f"report{num_ranks}.html"
    directory.write(root, num_ranks=num_ranks, num_steps=STEPS, modes=modes)
    command = [sys.executable, str(Path(__file__).with_name("report_build.py")), str(root), str(report)]
    took = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    parts = ", ".join(f"{name} {units.seconds(took[f'{name}_s'])}" for name in ("analyse", "diagnose", "render", "cpu"))
    print(f"{units.count(num_ranks, 'rank')} x {STEPS} steps: {', '.join(['single', *modes])}")
    built = took["analyse_s"] + took["diagnose_s"] + took["render_s"]
    checks = [
        _check("  page", took["page_bytes"], bounds.page_bytes, units.size),
        _check(f"  built ({parts} in all)", built, bounds.build_s, units.seconds),
        _check("  peak memory, the run itself included", took["peak_bytes"], bounds.peak_bytes, units.size),
    ]
    if CHROMIUM is None:
        print("  first paint: unknown, there is no Chromium on this machine")
    else:
        checks.append(_check("  first contentful paint", first_paint_s(report), bounds.paint_s, units.seconds))
    return all(checks)


def _check(what: str, value: float, bound: float | None, words: Callable[[float], str]) -> bool:
    within = bound is None or value <= bound
    said = "" if bound is None else f" (bound {words(bound)}){'' if within else ', BROKEN'}"
    print(f"{what}: {words(value)}{said}", flush=True)
    return within


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", choices=BOUNDS, default=list(BOUNDS), help="runs to make")
    parser.add_argument("--modes", nargs="+", default=["ddp"], help="modes beside single")
    parser.add_argument("--keep", type=Path, help="new folder for the runs and their reports; default: thrown away")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = args.keep or Path(name)
        within = [measure(ranks, BOUNDS[ranks], folder, args.modes) for ranks in args.ranks]
    sys.exit(0 if all(within) else 1)


if __name__ == "__main__":
    main()
