"""Record one run of each planted fault and healthy sample, for tests that replay them through analysis and report.

    python -m tests.benchmarks.record_planted                     # half an hour on a quiet machine
    python -m tests.benchmarks.record_planted --only slow_rank    # some of them anew
    python -m tests.benchmarks.record_planted --expected          # after a change of a rule: its effect, as a diff

Each is one `dpdoctor profile` with a fault of a middle size. A run in which the fault is not named first, or something
is named in a healthy sample, is not kept: an entry is profiled up to three times. So recordings say nothing of how
often dpdoctor is right, which is what planted_faults.py tells. They show what a change does to runs that are known.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpdoctor import rundir, units
from dpdoctor.analysis import analyse
from dpdoctor.rules import diagnose
from tests.benchmarks.planted import launching, verdicts
from tests.benchmarks.planted.catalogue import ENTRIES
from tests.benchmarks.planted.recording import EXPECTED, RECORDINGS, facts, pack, path_of, unpack
from tests.benchmarks.planted.scoring import fault

MOST_BYTES = 10_000_000
ATTEMPTS = 3
OWN = [name for name, entry in ENTRIES.items() if not entry.third_party]


def record(name: str) -> bool:
    """Keep a run of an entry; return whether one of its attempts was as its entry says."""
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryDirectory() as directory:
            run = Path(directory) / "run"
            error = launching.profile(ENTRIES[name], ENTRIES[name].usual, run, {})
            wrong = fault(ENTRIES[name], verdicts.read(run, error))
            if wrong is None:
                pack(run, path_of(name))
                return True
        print(f"{name}: {wrong}", flush=True)
    return False


def replayed(name: str) -> dict[str, Any]:
    """Return the facts of a recording."""
    with tempfile.TemporaryDirectory() as directory:
        analysis = diagnose(analyse(rundir.read(unpack(path_of(name), Path(directory)))))
        return facts(json.loads(rundir.encode(analysis.summary)))


def expect(names: Sequence[str]) -> None:
    """Keep the facts of all recordings, a line for each of them that may change by itself."""
    EXPECTED.write_text(json.dumps({name: replayed(name) for name in names}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=OWN, default=OWN, metavar="NAME", help=f"of {', '.join(OWN)}")
    parser.add_argument("--expected", action="store_true", help="record nothing; judge the recordings anew")
    args = parser.parse_args()
    RECORDINGS.mkdir(parents=True, exist_ok=True)
    missed = [] if args.expected else [name for name in args.only if not record(name)]
    expect([name for name in OWN if path_of(name).exists()])
    total = sum(path.stat().st_size for path in RECORDINGS.iterdir())
    print(f"{len(missed)} missed; all recordings take {units.size(total)}")
    return int(bool(missed) or total > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
