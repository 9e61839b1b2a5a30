"""Run directories on disk, from runs that tests build in memory."""

from __future__ import annotations

from pathlib import Path

from dpdoctor import rundir
from dpdoctor.records import Rank, Run


def write(run: Run, root: Path) -> Path:
    """Write a run as `dpdoctor profile` leaves it, but for its summary and report; return the directory."""
    root.mkdir(parents=True)
    rundir.write_json(root / rundir.HEADER, run.header)
    for mode, launches in run.modes.items():
        for launch in launches:
            directory = rundir.launch_dir(root, mode, launch.record.launch)
            directory.mkdir()
            rundir.write_json(directory / rundir.LAUNCH, launch.record)
            rundir.append_lines(directory / rundir.NODE, launch.samples)
            for rank in launch.ranks:
                _write_rank(rank, rundir.rank_dir(directory, rank.index))
    return root


def _write_rank(rank: Rank, directory: Path) -> None:
    directory.mkdir()
    if rank.record is not None:
        rundir.write_json(directory / rundir.RANK, rank.record)
    if rank.digest is not None:
        rundir.write_json(directory / rundir.DIGEST, rank.digest)
    for name, records in (
        (rundir.STEPS, rank.steps),
        (rundir.WINDOWS, rank.windows),
        (rundir.EVENTS, rank.events),
        (rundir.LOADER, rank.batches),
    ):
        rundir.append_lines(directory / name, records)
