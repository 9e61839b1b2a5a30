"""Make the gallery: profile the samples on this machine, as they are and with faults, and keep their reports.

    python reports/make_gallery.py

It takes some two minutes for each run; --only makes some of them anew. Of a run are kept NAME/report.html, which has
the figures of its run.json inside, a picture of its first screen, which takes Chromium, and origin.json with command,
commit, machine and versions; the reports share one plotly.js, and index.html has a line per run. The machine goes by
the name of --host in all of them: what would still name it ends the program. The run directories stay in
reports/gallery-runs, which is not for keeping.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from making import index, picture
from making.entries import ENTRIES, OPTIONS, Entry
from making.neutral import neutralise, traces_of_this_machine
from making.origin import commit, origin

from dpdoctor import rundir, units
from dpdoctor.analysis import RunSummary

REPOSITORY = Path(__file__).resolve().parents[1]
GALLERY = REPOSITORY / "reports" / "gallery"
# Relative, because it is in the command that a report shows.
RUNS = Path("reports", "gallery-runs")
MOST_BYTES = 10_000_000
# In a run's directory: the commit that recorded it.
COMMIT = "commit.txt"


def profile(name: str, entry: Entry, host: str) -> None:
    """Profile an entry."""
    run = RUNS / name
    shutil.rmtree(REPOSITORY / run, ignore_errors=True)
    _dpdoctor(
        *("profile", entry.script, "--modes", entry.modes, *OPTIONS, *entry.options),
        *("--out", str(run), "--", *entry.args),
    )
    neutralise(REPOSITORY / run, REPOSITORY, host)
    (REPOSITORY / run / COMMIT).write_text(commit(REPOSITORY))


def show(name: str, entry: Entry) -> None:
    """Make the report of a recorded entry, and keep it."""
    run = RUNS / name
    _dpdoctor("report", str(run), "--plotlyjs", "directory")
    keep(REPOSITORY / run, name, entry)


def keep(run: Path, name: str, entry: Entry) -> None:
    """Copy a run's report and its origin into the gallery, and plotly.js, which lies beside the runs."""
    folder = GALLERY / name
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(run / rundir.REPORT, folder)
    for script in run.parent.glob("*.js"):
        shutil.copy(script, GALLERY)
    summary = rundir.read_json(run / rundir.SUMMARY, RunSummary)
    picture.take(folder / rundir.REPORT, folder / index.PICTURE)
    rundir.write_json(folder / index.ORIGIN, origin(summary, entry.what, (run / COMMIT).read_text()))


def check() -> None:
    """End the program where the gallery names this machine or is too large."""
    files = sorted(path for path in GALLERY.rglob("*") if path.is_file())
    for path in files:
        is_ours = path.suffix not in {".js", ".jpg"}
        if is_ours and (found := traces_of_this_machine(path.read_text("utf-8"), REPOSITORY)):
            sys.exit(f"{path.relative_to(REPOSITORY)} names this machine: {found[0]}")
    total = sum(path.stat().st_size for path in files)
    print(f"{GALLERY.relative_to(REPOSITORY)}: {units.size(total)}")
    if total > MOST_BYTES:
        sys.exit(f"that is more than {units.size(MOST_BYTES)}")


def _dpdoctor(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "dpdoctor", *arguments], cwd=REPOSITORY, check=False)
    if done.returncode:
        sys.exit(f"dpdoctor {' '.join(arguments)} ended with {done.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ENTRIES, metavar="NAME", help=f"of {', '.join(ENTRIES)}")
    parser.add_argument("--host", default="gallery-machine", help="what this machine is called in the reports")
    parser.add_argument("--recorded", action="store_true", help="make reports anew of runs that lie in gallery-runs")
    args = parser.parse_args()
    for name in args.only or ENTRIES:
        print(f"{name} ...", flush=True)
        if not args.recorded:
            profile(name, ENTRIES[name], args.host)
        show(name, ENTRIES[name])
    index.write(GALLERY)
    check()


if __name__ == "__main__":
    main()
