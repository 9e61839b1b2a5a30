"""`dpdoctor analyze`: where the time went, from traces that exist already."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from dpdoctor import cgroup, redact, rundir, units
from dpdoctor.cli import Verb, _options, _report
from dpdoctor.digest import Digest
from dpdoctor.errors import OutputError, TraceError, UsageError
from dpdoctor.launch import machine
from dpdoctor.records import Launch, LaunchRecord, Rank, Run
from dpdoctor.spec import TRACE_MODE, ModeSpec, RunHeader, RunSpec
from dpdoctor.trace.stream import MAX_BYTES
from dpdoctor.version import __version__


@click.command(cls=Verb, short_help="Read profiler traces, one per rank; write a report.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH...")
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
@_options.comm_kernels
@_report.options
@click.option("--open", "open_page", is_flag=True, help="Open the report in the browser.")
def analyze(paths: tuple[Path, ...], **options: Any) -> None:
    """Read profiler traces, one per rank, plain or gzip, in files or folders; write a report.

    With --format markdown or json and without --out no run directory is made.
    """
    kept = options["out"] is not None or options["as_format"] == _report.TERMINAL
    _check(options, kept=kept)
    from dpdoctor.trace.files import locate  # here: numpy takes its time, and --help imports every verb

    found = locate(paths)
    header = _header(paths, len(found))
    is_part = options["part"] is not None
    root = options["out"] or Path("reports", f"{_stem(paths[0])}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}")
    if kept:
        _refuse_others(root, header.spec.modes, is_part=is_part)
    digests, errors = _digests(found, options)
    if kept and (digests or is_part):
        _write_digests(root, header, digests, errors)
        if is_part:
            click.echo(f"Part {options['part']} is in {root}; when all are: dpdoctor report {root}", err=True)
        else:
            console = _report.console_for(options["as_format"])
            _report.make(root, console, **{name: options[name] for name in ("as_format", "plotlyjs", "open_page")})
    elif digests:
        _report.print_run(_run(header, digests, errors), as_format=options["as_format"])
    for error in errors:
        click.echo(f"Error: {error}", err=True)
    if errors:
        raise TraceError(f"{len(errors)} of {units.count(len(digests) + len(errors), 'trace')} could not be read")


def _check(options: dict[str, Any], *, kept: bool) -> None:
    """Raise UsageError for options that ask for something of a report that is not made."""
    if options["part"] is not None and options["out"] is None:
        raise UsageError("--shard needs --out: the directory in which all parts meet")
    of_report = options["open_page"] or options["plotlyjs"] != _report.INLINE
    if options["part"] is not None and (of_report or options["as_format"] != _report.TERMINAL):
        raise UsageError("--shard shows nothing yet; give --format, --plotlyjs and --open to `dpdoctor report`")
    if of_report and not kept:
        raise UsageError(f"--format {options['as_format']} makes no report without --out: no --plotlyjs, no --open")


def _digests(found: Sequence[Path], options: dict[str, Any]) -> tuple[dict[int, Digest], list[str]]:
    """Return the digests of this part of the files by their place among all, and what is wrong with the others."""
    from dpdoctor.attribution.digesting import digest_file
    from dpdoctor.trace import parallel
    from dpdoctor.trace.files import in_shard, parse_shard

    part = options["part"]
    places = range(len(found)) if part is None else in_shard(_sizes(found), parse_shard(part))
    function = functools.partial(digest_file, max_bytes=options["max_bytes"], comm_kernels=options["comm_kernels"])
    processes = options["processes"] or cgroup.cores()
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
        fingerprint=machine.fingerprint(None, packages={}),
    )


def _refuse_others(root: Path, modes: Sequence[ModeSpec], *, is_part: bool) -> None:
    """Raise OutputError for a directory in which something else is than other parts of the same files."""
    try:
        names = {path.name for path in root.iterdir() if not path.name.startswith(".")}
    except OSError:  # there is none yet, or writing says what is wrong
        return
    of_parts = {TRACE_MODE, rundir.HEADER, rundir.SUMMARY, rundir.REPORT, rundir.TIMELINE}
    header = root / rundir.HEADER
    is_alike = not header.exists() or rundir.read_json(header, RunHeader).spec.modes == tuple(modes)
    if names and not (is_part and names <= of_parts and is_alike):
        raise OutputError(f"{root} exists already and holds other results; nothing is overwritten. Give another --out")


def _write_digests(root: Path, header: RunHeader, digests: dict[int, Digest], errors: Sequence[str]) -> None:
    """Write a run directory, or add a part to it; a file's place among all decides its directory.

    Raises:
        OutputError: it cannot be written, or holds this part.
    """
    from dpdoctor.gate.files import locked_directory

    directory = rundir.launch_dir(root, TRACE_MODE)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for place in digests:
            rundir.rank_dir(directory, place).mkdir()
    except FileExistsError as error:
        raise OutputError(f"{error.filename} exists already; nothing is overwritten. Give another --out") from error
    except OSError as error:
        raise OutputError(f"cannot create {root}: {error.strerror}. Give --out a directory you may write") from error
    for place, digest in digests.items():
        rundir.write_whole(rundir.rank_dir(directory, place) / rundir.DIGEST, rundir.encode(digest))
    with locked_directory(directory):  # parts may end at the same time
        launch = directory / rundir.LAUNCH
        before = rundir.read_json(launch, LaunchRecord).stderr_tail if launch.exists() else ()
        rundir.write_json(launch, _launch(tuple(dict.fromkeys((*before, *errors)))))
        rundir.write_json(root / rundir.HEADER, header)


def _launch(errors: Sequence[str]) -> LaunchRecord:
    """Return what stands for the launch of a mode: the traces that could not be read are its last lines."""
    return LaunchRecord(mode=TRACE_MODE, launch=1, status="ok", stderr_tail=tuple(errors))


def _run(header: RunHeader, digests: dict[int, Digest], errors: Sequence[str]) -> Run:
    """Return the run that would be read from a directory with these digests in it."""
    ranks = tuple(
        Rank(index=place, record=None, steps=(), windows=(), events=(), trace=None, digest=digest)
        for place, digest in sorted(digests.items())
    )
    launch = Launch(record=_launch(errors), ranks=ranks, samples=())
    return Run(path=Path(), header=header, modes={TRACE_MODE: (launch,)})


COMMAND = analyze
