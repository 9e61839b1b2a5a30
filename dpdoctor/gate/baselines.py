"""Named baselines: small JSON files for git, each with a line for every change of what is expected.

A file's name is the baseline's. Its entries keep their order and their line breaks, so that git shows what changed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from dpdoctor import rundir, schema1
from dpdoctor.errors import BaselineError, RunDirectoryError
from dpdoctor.gate.comparable import unsound
from dpdoctor.gate.files import locked, make_directory, write_new
from dpdoctor.gate.recorded import Recorded

SCHEMA = 2
SUFFIX = ".json"


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """Who made a run the one to compare with, when and why.

    Attributes:
        at: UTC, as in 2026-01-02T03:04:05Z.
        created: when the run was made.
        seconds: per step, expected from then on, by mode.
    """

    at: str
    by: str
    reason: str
    created: str
    seconds: dict[str, float]


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """What runs are compared with. `audit`: the newest line last; none is ever removed."""

    schema: int = SCHEMA
    audit: tuple[AuditLine, ...]
    recorded: Recorded


class Author(msgspec.Struct, frozen=True, kw_only=True):
    """Who changes a baseline, when (UTC) and why; all of it goes into git, so secrets are redacted before."""

    at: str
    by: str
    reason: str


def name_of(path: Path) -> str:
    """Return what a baseline is called: its file's name without the suffix."""
    return path.name.removesuffix(SUFFIX)


def read(path: Path) -> Baseline:
    """Return the baseline in a file.

    Raises:
        BaselineError: missing, unreadable, damaged (with the place), or of another schema.
    """
    try:
        found = rundir.read_json(path, _Version)
        if found.schema not in (schema1.SCHEMA_1, SCHEMA):
            raise BaselineError(
                f"{path} has schema {found.schema}; this dpdoctor reads schemas {schema1.SCHEMA_1} and {SCHEMA}. Read "
                "it with the version that wrote it, or save it anew from a run: `dpdoctor baseline save`"
            )
        return rundir.read_json(path, Baseline, schema=found.schema)
    except RunDirectoryError as error:
        raise BaselineError(
            f"{error.message}. Give a file that `dpdoctor baseline save` wrote, or restore it from git"
        ) from error


class _Version(msgspec.Struct, frozen=True, kw_only=True):
    """What is read first: the rest of a file of another schema need not be of this shape."""

    schema: int


def save(path: Path, recorded: Recorded, author: Author) -> Baseline:
    """Write a new baseline and return it.

    Raises:
        BaselineError: the file exists, or the run is no evidence.
        OutputError: the file cannot be written.
    """
    _refuse_unsound(recorded)
    baseline = Baseline(audit=(_line(recorded, author),), recorded=recorded)
    make_directory(path.parent)
    try:
        write_new(path, _text(baseline))
    except FileExistsError as error:
        raise BaselineError(
            f"{path} exists already. `dpdoctor baseline accept --reason` changes what it expects, and says why"
        ) from error
    return baseline


def accept(path: Path, recorded: Recorded, author: Author) -> Baseline:
    """Make a run what is expected from now on, add the line that says why, and return the baseline.

    Two who accept at once wait for each other: both lines are kept.

    Raises:
        BaselineError: as `read`; or the run is no evidence, or was not asked for a mode that is expected.
        OutputError: the file cannot be written.
    """
    with locked(path):
        before = read(path)
        _refuse_unsound(recorded)
        lost = [name for name in before.recorded.asked_for if name not in recorded.asked_for]
        if lost:
            raise BaselineError(
                f"the run has no mode {lost[0]}, which {path} expects. Profile it with "
                f"--modes {','.join(before.recorded.asked_for)}, or save the run as another baseline"
            )
        after = Baseline(audit=(*before.audit, _line(recorded, author)), recorded=recorded)
        rundir.write_whole(path, _text(after))
    return after


def listed(directory: Path) -> list[Path]:
    """Return the JSON files of a directory in the order of their names.

    Raises:
        BaselineError: it is no directory.
    """
    if not directory.is_dir():
        raise BaselineError(f"{directory} is not a directory; give the one that holds your baselines")
    return sorted(path for path in directory.iterdir() if path.suffix == SUFFIX and not path.name.startswith("."))


def _refuse_unsound(recorded: Recorded) -> None:
    found = [refusal for name in recorded.asked_for for refusal in unsound("head", name, recorded.modes[name])]
    if found:
        told = "; ".join(f"{one.field}: {one.head}. {one.remedy}" for one in found)
        raise BaselineError(f"this run is nothing to compare with. {told}")


def _line(recorded: Recorded, author: Author) -> AuditLine:
    steps = {name: mode.summary.step.value for name, mode in sorted(recorded.modes.items())}
    return AuditLine(
        at=author.at,
        by=author.by,
        reason=author.reason,
        created=recorded.header.created,
        seconds={name: value for name, value in steps.items() if value is not None},
    )


def _text(baseline: Baseline) -> bytes:
    """Return the file's bytes: entries in the order of the types, names in that of the alphabet, a line for each."""
    modes = dict(sorted(baseline.recorded.modes.items()))
    ordered = replace(baseline, recorded=replace(baseline.recorded, modes=modes))
    return msgspec.json.format(msgspec.json.encode(ordered, order="deterministic"), indent=1) + b"\n"
