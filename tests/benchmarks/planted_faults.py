"""Are the diagnoses true? Faults are planted in scripts, at sizes drawn at random, and dpdoctor is asked blindly.

    python tests/benchmarks/planted_faults.py --runs 5 --imagenet EXAMPLES/imagenet --mingpt MINGPT

Sizes are drawn and sealed in OUT/plan.json before the first run. Every run is one `dpdoctor profile` with all
ablations; what it found is read from its run.json into OUT/verdicts.json by code that does not see the plan. Where a
clock can tell the seconds that a step loses, they are timed without dpdoctor before and after the run, into
OUT/timed.json: the machine is not equally fast for an hour. Only then is the plan opened. Interrupted, the same command
goes on. Recorded runs can be judged again after a rule was changed (`--score`): whoever changed it because of them has
then seen them, and needs a new seed for a new result.

Printed are a table and whether: the planted fault is the first finding of the mode that it slows down in at least 95
% of the runs; where a known time is planted, the cost is right within 3% of the step or 15% of the planted cost;
scripts that are healthy by the ablations give no warning in at least 95%; what was seen in the trace or on the host's
clock and what an ablation gains agree, by run.json's own cross-check, in at least 90%.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from planted import launching, verdicts
from planted.catalogue import ENTRIES, Entry
from planted.plan import PLAN, PlannedRun, draw, seal, unseal
from planted.scoring import Score, score, table, totals
from planted.verdicts import VERDICTS, Verdict

from dpdoctor import rundir
from dpdoctor.analysis import analyse
from dpdoctor.rules import diagnose

TIMED = "timed.json"


def run_all(root: Path, entries: Mapping[str, Entry], runs: Sequence[PlannedRun], sources: Mapping[str, Path]) -> None:
    """Profile every planned run that did not end yet, and write what each said."""
    said = list(_said(root))
    for number, run in enumerate(runs[len(said) :], len(said) + 1):
        shutil.rmtree(root / run.folder, ignore_errors=True)
        folder = root / run.folder
        before = _timed(entries[run.entry], run.size)
        error = launching.profile(entries[run.entry], run.size, folder, sources)
        after = _timed(entries[run.entry], run.size)
        if before is not None and after is not None:
            rundir.write_json(root / TIMED, {**_planted_s(root), run.folder: (before + after) / 2})
        said.append(verdicts.read(folder, error))
        (root / VERDICTS).write_bytes(msgspec.json.format(msgspec.json.encode(said)))
        print(f"{number} of {len(runs)} done", file=sys.stderr, flush=True)


def _timed(entry: Entry, size: float | None) -> float | None:
    return entry.seconds(size) if entry.seconds and size else None


def _planted_s(root: Path) -> dict[str, float]:
    path = root / TIMED
    return rundir.read_json(path, dict[str, float]) if path.exists() else {}


def _said(root: Path) -> list[Verdict]:
    path = root / VERDICTS
    return msgspec.json.decode(path.read_bytes(), type=list[Verdict]) if path.exists() else []


def report(root: Path, entries: Mapping[str, Entry]) -> None:
    """Open the plan and print the table."""
    said, planted_s = {verdict.folder: verdict for verdict in _said(root)}, _planted_s(root)
    scores = [
        score(run, entries[run.entry], said[run.folder], planted_s.get(run.folder))
        for run in unseal(root)
        if run.folder in said
    ]
    checked = [one for v in said.values() for mode in v.modes.values() for one in mode.checked]
    print("\n".join([table(entries, scores), "", *totals(entries, scores, checked), "", *map(_detail, scores)]))


def judge_again(root: Path) -> None:
    """Read every run that ended anew from what it recorded."""
    said = [_judged_again(root / verdict.folder, verdict.error) for verdict in _said(root)]
    (root / VERDICTS).write_bytes(msgspec.json.format(msgspec.json.encode(said)))


def _judged_again(folder: Path, error: str | None) -> Verdict:
    if (folder / rundir.SUMMARY).exists():
        rundir.write_json(folder / rundir.SUMMARY, diagnose(analyse(rundir.read(folder))).summary)
    return verdicts.read(folder, error)


def _detail(score: Score) -> str:
    size = "" if score.run.size is None else f":{score.run.size:g}"
    off = "" if score.error is None else f", off by {score.error:+.3f} of the step"
    proved = {None: "", True: ", healthy by the ablations", False: ", not healthy by the ablations"}[score.proved]
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
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder for plan, verdicts and run directories; a begun one is continued",
    )
    parser.add_argument(
        "--score", action="store_true", help="run nothing: judge what lies in --out by the rules of today, and score it"
    )
    args = parser.parse_args()
    sources = {name: path.resolve() for name, path in (("imagenet", args.imagenet), ("minGPT", args.mingpt)) if path}
    entries = {
        name: entry
        for name, entry in ENTRIES.items()
        if name in (args.only or ENTRIES) and (not entry.third_party or entry.script in sources)
    }
    if args.score:
        judge_again(args.out)
    else:
        run_all(args.out.resolve(), entries, planned(args.out, entries, args), sources)
    report(args.out, ENTRIES)


def planned(root: Path, entries: Mapping[str, Entry], args: argparse.Namespace) -> list[PlannedRun]:
    """Return the plan that was sealed in a folder, or a new one."""
    if (root / PLAN).exists():
        return unseal(root)
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        raise SystemExit(f"{root} is not empty and has no {PLAN}: name another --out")
    runs = draw(entries, args.runs, args.seed)
    print(f"{len(runs)} runs planned; sha256 of the plan: {seal(root, runs)}")
    return runs


if __name__ == "__main__":
    main()
