"""`dpdoctor baseline`: keep what runs are compared with, as small files for git."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpdoctor import redact, rundir, units
from dpdoctor.cli import _start
from dpdoctor.errors import BaselineError, UsageError

if TYPE_CHECKING:
    from dpdoctor.gate.baselines import AuditLine, Author, Baseline
    from dpdoctor.gate.recorded import Recorded

FIRST = "first of its name"

_run = click.argument("run_dir", type=click.Path(path_type=Path), metavar="RUN")
_file = click.argument("file", type=click.Path(path_type=Path))


@click.group(short_help="Keep, accept and list baselines for the gate.")
def baseline() -> None:
    """Keep what runs are compared with: small JSON files for git, each named by its file.

    Start with: dpdoctor baseline save RUN baselines/main.json; then dpdoctor gate RUN --baseline baselines/main.json
    judges another run by it.
    """


@baseline.command()
@_run
@_file
@click.option("--reason", default=FIRST, show_default=True, metavar="TEXT", help="Why, for the file's own record.")
def save(run_dir: Path, file: Path, reason: str) -> None:
    """Make RUN, a run directory, a new baseline in FILE."""
    from dpdoctor.gate import baselines

    baselines.save(file, _recorded(run_dir), _author(reason))
    click.echo(f"Baseline: {file}")


@baseline.command()
@_run
@_file
@click.option("--reason", required=True, metavar="TEXT", help="Why this is to be expected from now on.")
def accept(run_dir: Path, file: Path, reason: str) -> None:
    """Update baseline FILE from RUN; FILE records author, time and reason."""
    from dpdoctor.gate import baselines

    after = baselines.accept(file, _recorded(run_dir), _author(reason))
    click.echo(f"Baseline: {file}, {_expected(after.audit[-1])} instead of {_expected(after.audit[-2])}")


@baseline.command("list")
@click.argument("directory", type=click.Path(path_type=Path), default="baselines")
def list_(directory: Path) -> None:
    """Show the baselines in DIRECTORY, by default `baselines`, each with its record."""
    from dpdoctor.gate import baselines

    damaged = 0
    for path in baselines.listed(directory):
        try:
            found = baselines.read(path)
        except BaselineError as error:
            damaged += 1
            click.echo(f"Error: {error.message}", err=True)
        else:
            click.echo("\n".join(_lines(baselines.name_of(path), found)))
    if damaged:
        raise BaselineError(f"{units.count(damaged, 'file')} in {directory} cannot be read as a baseline")


def _recorded(run_dir: Path) -> Recorded:
    from dpdoctor.gate.recorded import recorded

    return recorded(rundir.read(run_dir))


def _author(reason: str) -> Author:
    from dpdoctor.gate.baselines import Author

    if not reason.strip():
        raise UsageError("--reason is empty; say why this is to be expected")
    return Author(at=_start.now(), by=redact.text(_person()), reason=redact.text(reason.strip()))


def _person() -> str:
    """Return who asks: whose push or pull request a job on GitHub is of, else the user of this machine."""
    if actor := os.environ.get("GITHUB_ACTOR"):
        return actor
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return f"user {units.whole(os.getuid())}"


def _lines(name: str, found: Baseline) -> list[str]:
    """Return a baseline with its record, the newest change first."""
    from dpdoctor.redact import printable

    spec = found.recorded.header.spec
    title = f"{name}: {' '.join((spec.target, *spec.args))}, {_expected(found.audit[-1])}"
    changes = [f"  {line.at}  {line.by}: {line.reason}" for line in reversed(found.audit)]
    # What is in a file may come from anybody: it must not command the terminal, nor look like another line.
    return [" ".join(printable(line).split("\n")) for line in (title, *changes)]


def _expected(line: AuditLine) -> str:
    steps = [f"{mode} {units.seconds(seconds)}" for mode, seconds in line.seconds.items()]
    return ", ".join(steps) or "no step time"


COMMAND = baseline
