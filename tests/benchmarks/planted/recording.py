"""Planted runs as small files, and what is expected of them: recorded once, judged again whenever a rule changes."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

from dpdoctor import rundir
from reports.making.neutral import neutralise

REPOSITORY = Path(__file__).resolve().parents[3]
RECORDINGS = REPOSITORY / "tests" / "data" / "planted"
EXPECTED = RECORDINGS / "expected.json"
HOST = "recorded-machine"
# Traces are left out, which are most of a run and have their digest, and logs.
KEPT = (
    *(rundir.HEADER, rundir.LAUNCH, rundir.NODE, rundir.RANK, rundir.DIGEST),
    *(rundir.STEPS, rundir.WINDOWS, rundir.EVENTS, rundir.LOADER),
)
FIGURES = ("throughput", "throughput_all_steps", "step", "speedup", "epoch_s", "profiler_overhead")


def path_of(name: str) -> Path:
    """Return where the recording of an entry lies."""
    return RECORDINGS / f"{name}.tar.xz"


def pack(run: Path, file: Path) -> None:
    """Write a run directory into a file, without the names of this machine; the same run gives the same bytes."""
    neutralise(run, REPOSITORY, HOST)
    with tarfile.open(file, "w:xz", preset=9) as archive:
        for path in sorted(path for path in run.rglob("*") if path.name in KEPT):
            archive.add(path, path.relative_to(run), filter=_nobodys)


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


def unpack(file: Path, folder: Path) -> Path:
    """Return the folder, which is a run directory now."""
    with tarfile.open(file) as archive:
        # Python 3.10 and 3.11 have filters from some patch release on; the archives are ours.
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder


def facts(summary: dict[str, Any]) -> dict[str, Any]:
    """Return what a run.json says in figures, rules and states, a line for each; its sentences are left out."""
    return {
        "modes": {name: _mode(mode) for name, mode in summary["modes"].items()},
        "findings": [_finding(found) for found in summary["findings"]],
        "not judged": sorted(f"{one['rule']} in {one['mode']}" for one in summary["inconclusive"]),
    }


def _mode(mode: dict[str, Any]) -> dict[str, Any]:
    return {
        "status": mode["status"],
        **{name: _figure(mode[name]) for name in FIGURES},
        "phases": {name: _figure(figure) for name, figure in mode["phases"].items()},
        "breakdown": {name: _figure(figure) for name, figure in (mode["breakdown"] or {}).items() if name != "idle_by"},
        "ablations": {name: _figure(ablation["gain"]) for name, ablation in mode["ablations"].items()},
        "cross_checks": {check["ablation"]: check["agrees"] for check in mode["cross_checks"]},
    }


def _finding(found: dict[str, Any]) -> str:
    what = f"{found['rule']} in {found['mode']}: {found['severity']}, {found['status']}, ranks {found['ranks']}"
    return f"{what}, {_figure(found['cost'])} of the {found['share_of']}, predicted {_figure(found['speedup'])}"


def _figure(figure: dict[str, Any] | None) -> str:
    """Return value and interval to six digits: another processor may round the last ones otherwise."""
    if figure is None:
        return "nothing"
    value, low, high = (None if (v := figure.get(k)) is None else f"{v:.6g}" for k in ("value", "low", "high"))
    if value is None:
        return "unknown"
    return f"{value} {figure['unit']}" if high is None else f"{value} {figure['unit']} ({low} to {high})"
