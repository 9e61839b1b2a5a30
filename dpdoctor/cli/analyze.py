"""`dpdoctor analyze`: where the time went, from traces that exist already."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from dpdoctor import __version__, redact, rundir, units
from dpdoctor.cli import _report
from dpdoctor.digest import HOST, Budget, Digest
from dpdoctor.errors import OutputError, TraceError, UsageError
from dpdoctor.launch import machine
from dpdoctor.records import LaunchRecord
from dpdoctor.spec import TRACE_MODE, ModeSpec, RunHeader, RunSpec
from dpdoctor.trace.stream import MAX_BYTES


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH...")
@click.option("--json", "json_to", metavar="FILE", help="Write the budget of every device as JSON; - is stdout.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory. Default: reports/PATH-TIME."
)
@click.option(
    "--shard", "part", metavar="I/N", help="Digest part I of N of the files into --out; `report` merges them."
)
@click.option("--processes", type=click.IntRange(1), metavar="N", help="Files read at a time. Default: the cores.")
@click.option(
    "--max-bytes", type=click.IntRange(1), default=MAX_BYTES, show_default=True, help="Most bytes of JSON in a file."
)
@click.option("--open", "open_page", is_flag=True, help="Open the report in the browser.")
def analyze(paths: tuple[Path, ...], **options: Any) -> None:
    """Read profiler traces, one per rank, plain or gzip, in files or folders; write a report.

    With --json and without --out no run directory is made.
    """
    if options["part"] is not None and options["out"] is None:
        raise UsageError("--shard needs --out: the directory in which all parts meet")
    from dpdoctor.trace.locate import locate  # here: numpy takes its time, and --help imports every verb

    found = locate(paths)
    digests, errors = _digests(found, options)
    if options["json_to"] is not None:
        _write_json(options["json_to"], [(found[place], digest) for place, digest in digests.items()], errors)
    if digests and (options["json_to"] is None or options["out"] is not None):
        root = options["out"] or Path("reports", f"{_stem(paths[0])}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}")
        _write_digests(root, _header(paths, len(found)), digests, errors)
        if options["part"] is None:
            _report.make(root, Console(stderr=options["json_to"] == "-"), open_page=options["open_page"])
        else:
            click.echo(f"Part {options['part']} is in {root}; when all are: dpdoctor report {root}", err=True)
    for error in errors:
        click.echo(f"Error: {error}", err=True)
    if errors:
        raise TraceError(f"{len(errors)} of {units.count(len(digests) + len(errors), 'trace')} could not be read")


def _digests(found: Sequence[Path], options: dict[str, Any]) -> tuple[dict[int, Digest], list[str]]:
    """Return the digests of this part of the files by their place among all, and what is wrong with the others."""
    from dpdoctor.attribution.digesting import digest_file
    from dpdoctor.trace import parallel, shard

    part = options["part"]
    places = range(len(found)) if part is None else shard.select(_sizes(found), shard.parse(part))
    function = functools.partial(digest_file, max_bytes=options["max_bytes"])
    processes = options["processes"] or machine.cores()
    read = list(parallel.each(function, [found[place] for place in places], processes=processes))
    digests = {place: item for place, item in zip(places, read, strict=True) if isinstance(item, Digest)}
    return digests, [item.message for item in read if isinstance(item, TraceError)]


def _sizes(files: Sequence[Path]) -> list[int]:
    return [file.stat().st_size for file in files]


def _stem(path: Path) -> str:
    return re.sub(r"[^\w.-]+", "-", path.resolve().name.partition(".")[0]) or TRACE_MODE


def _header(paths: Sequence[Path], num_ranks: int) -> RunHeader:
    mode = ModeSpec(
        name=TRACE_MODE,
        world_size=num_ranks,
        num_devices=num_ranks,
        distributed=num_ranks > 1,
        batch_rule="per-device",
    )
    return RunHeader(
        dpdoctor=__version__,
        created=f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        command=tuple(redact.arguments(["dpdoctor", *sys.argv[1:]])),
        spec=RunSpec(
            target=redact.text(str(paths[0].absolute())),
            cwd=str(Path.cwd()),
            modes=(mode,),
            requested_modes=(mode.name,),
            threads_per_device=1,
        ),
        fingerprint=machine.fingerprint(None),
    )


def _write_digests(root: Path, header: RunHeader, digests: dict[int, Digest], errors: Sequence[str]) -> None:
    """Write a run directory, or add a part to it; a file's place among all decides its directory.

    Raises:
        OutputError: it cannot be written, or holds something else.
    """
    directory = rundir.launch_dir(root, TRACE_MODE)
    try:
        for place in digests:
            rundir.rank_dir(directory, place).mkdir(parents=True)
    except FileExistsError as error:
        raise OutputError(f"{error.filename} exists already; nothing is overwritten. Give another --out") from error
    except OSError as error:
        raise OutputError(f"cannot create {root}: {error.strerror}. Give --out a directory you may write") from error
    rundir.write_json(root / rundir.HEADER, header)
    rundir.write_json(
        directory / rundir.LAUNCH, LaunchRecord(mode=TRACE_MODE, launch=1, status="ok", stderr_tail=tuple(errors))
    )
    for place, digest in digests.items():
        rundir.write_whole(rundir.rank_dir(directory, place) / rundir.DIGEST, rundir.encode(digest))


def _write_json(to: str, digests: Sequence[tuple[Path, Digest]], errors: Sequence[str]) -> None:
    """Write the whole span of every device, from its first event to its last, in microseconds."""
    ranks = [
        {
            "rank": digest.rank,
            "path": str(path),
            "devices": {str(d.index): _microseconds(d.whole) for d in digest.devices if d.index != HOST},
            "host": next((_microseconds(d.whole) for d in digest.devices if d.index == HOST), None),
            "damage": digest.damage,
            "notes": digest.notes,
        }
        for path, digest in digests
    ]
    text = json.dumps({"ranks": ranks, "errors": errors}, indent=1)
    if to == "-":
        click.echo(text)
    else:
        rundir.write_whole(Path(to), text.encode())


def _microseconds(budget: Budget) -> dict[str, float]:
    parts = ("compute", "exposed_comm", "h2d", "copy", "idle", "total", "comm")
    return {f"{part}_us": getattr(budget, f"{part}_ns") / 1000 for part in parts}


COMMAND = analyze
