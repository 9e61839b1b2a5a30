"""Are the diagnoses true? Faults are planted in scripts, at sizes drawn at random, and dpdoctor is asked blindly.

    python tests/benchmarks/planted_faults.py --runs 5 --imagenet EXAMPLES/imagenet --mingpt MINGPT

Sizes are drawn and sealed in OUT/plan.json before the first run. Every run is one `dpdoctor profile` with all arms;
what it found is read from its run.json into OUT/verdicts.json by code that does not see the plan. Only then is the
plan opened. Printed are a table and whether: the planted fault is the first finding of the mode that it slows down in
at least 95 % of the runs; where a known time is planted, the cost is right within 3 % of the step or 15 % of the
planted cost; scripts that are healthy by the arms give no warning in at least 95 %; what was seen in the trace or on
the host's clock and what an arm gains agree within 5 % of the step or 2 standard errors in at least 90 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from planted import launching, verdicts
from planted.catalogue import ENTRIES, Entry
from planted.plan import PlannedRun, draw, seal, unseal
from planted.scoring import Score, score, table, totals
from planted.verdicts import VERDICTS, Verdict


def run_all(root: Path, entries: Mapping[str, Entry], runs: Sequence[PlannedRun], sources: Mapping[str, Path]) -> None:
    """Profile every planned run and write what each said."""
    said: list[Verdict] = []
    for number, run in enumerate(runs, 1):
        folder = root / run.folder
        error = launching.profile(entries[run.entry], run.size, folder, sources)
        said.append(verdicts.read(folder, error))
        (root / VERDICTS).write_bytes(msgspec.json.format(msgspec.json.encode(said)))
        print(f"{number} of {len(runs)} done", file=sys.stderr, flush=True)


def report(root: Path, entries: Mapping[str, Entry]) -> None:
    """Open the plan and print the table."""
    said = {v.folder: v for v in msgspec.json.decode((root / VERDICTS).read_bytes(), type=list[Verdict])}
    scores = [score(run, entries[run.entry], said[run.folder]) for run in unseal(root) if run.folder in said]
    checked = [one for v in said.values() for mode in v.modes.values() for one in mode.checked]
    print("\n".join([table(entries, scores), "", *totals(entries, scores, checked), "", *map(_detail, scores)]))


def _detail(score: Score) -> str:
    size = "" if score.run.size is None else f":{score.run.size:g}"
    off = "" if score.error is None else f", off by {score.error:+.3f} of the step"
    proved = {None: "", True: ", healthy by the arms", False: ", not healthy by the arms"}[score.proved]
    return f"{score.run.folder} {score.run.entry}{size}: {score.said}{off}{proved}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of every entry")
    parser.add_argument(
        "--only", nargs="+", choices=ENTRIES, metavar="ENTRY", help=f"of {', '.join(ENTRIES)}; default: all"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sizes and the order")
    parser.add_argument("--imagenet", type=Path, help="folder of imagenet in a checkout of pytorch/examples")
    parser.add_argument("--mingpt", type=Path, help="checkout of karpathy/minGPT")
    parser.add_argument("--out", type=Path, required=True, help="new folder for plan, verdicts and run directories")
    parser.add_argument("--score", action="store_true", help="run nothing: score what lies in --out")
    args = parser.parse_args()
    sources = {name: path.resolve() for name, path in (("imagenet", args.imagenet), ("minGPT", args.mingpt)) if path}
    entries = {
        name: entry
        for name, entry in ENTRIES.items()
        if name in (args.only or ENTRIES) and (not entry.third_party or entry.script in sources)
    }
    if not args.score:
        args.out.mkdir(parents=True)
        runs = draw(entries, args.runs, args.seed)
        print(f"{len(runs)} runs planned; sha256 of the plan: {seal(args.out, runs)}")
        run_all(args.out.resolve(), entries, runs, sources)
    report(args.out, ENTRIES)


if __name__ == "__main__":
    main()
