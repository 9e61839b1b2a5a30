"""A run in memory written as the launcher and the ranks would have left it."""

from __future__ import annotations

from pathlib import Path

from dpdoctor import rundir
from dpdoctor.records import Launch, Run


def write(root: Path, run: Run) -> Path:
    """Write a run into a new directory and return that."""
    root.mkdir(parents=True)
    rundir.write_json(root / rundir.HEADER, run.header)
    for mode, launches in run.modes.items():
        for launch in launches:
            write_launch(rundir.launch_dir(root, mode, launch.record.launch), launch)
    return root


def write_launch(path: Path, launch: Launch) -> None:
    """Write one launch into a new directory."""
    path.mkdir()
    rundir.write_json(path / rundir.LAUNCH, launch.record)
    rundir.append_lines(path / rundir.NODE, launch.samples)
    for rank in launch.ranks:
        directory = rundir.rank_dir(path, rank.index)
        directory.mkdir()
        if rank.record is not None:
            rundir.write_json(directory / rundir.RANK, rank.record)
        for name, records in (
            (rundir.STEPS, rank.steps),
            (rundir.WINDOWS, rank.windows),
            (rundir.EVENTS, rank.events),
            (rundir.LOADER, rank.batches),
            (rundir.MEMORY, rank.memory),
        ):
            rundir.append_lines(directory / name, records)
        if rank.digest is not None:
            rundir.write_json(directory / rundir.DIGEST, rank.digest)
