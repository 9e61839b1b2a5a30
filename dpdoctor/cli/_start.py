"""What verbs that launch begin with: where it goes, the header that is written first, who watches."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace
from rich.console import Console

from dpdoctor import redact
from dpdoctor.heartbeat import Beat
from dpdoctor.launch import machine
from dpdoctor.launch.progress import LiveProgress, PlainProgress, Progress, Silence
from dpdoctor.records import LaunchRecord
from dpdoctor.spec import RunHeader, RunSpec
from dpdoctor.version import __version__

if TYPE_CHECKING:
    from dpdoctor.gate.sides import Checkout


def now() -> str:
    """Return the time in UTC, to the second: 2026-01-02T03:04:05Z."""
    return f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def default_out(spec: RunSpec, prefix: str = "") -> Path:
    """Return where results go if nobody says so: reports/, the script's name, the time, a number if that is taken."""
    name = spec.target if spec.is_module else Path(spec.target).stem
    stem = re.sub(r"[^\w.-]+", "-", f"{prefix}{redact.text(name)}")
    first = Path("reports", f"{stem}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}")
    others = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([first], others) if not path.exists())


def header(spec: RunSpec) -> RunHeader:
    """Return what is written before anything runs, without secrets."""
    return RunHeader(
        dpdoctor=__version__,
        created=now(),
        command=tuple(redact.arguments(["dpdoctor", *sys.argv[1:]])),
        spec=replace(spec, args=tuple(redact.arguments(spec.args))),
        fingerprint=machine.fingerprint(None if spec.is_module else Path(spec.target), machine.package_versions()),
    )


def checkout(label: str, spec: RunSpec, import_roots: tuple[str, ...] = ()) -> Checkout:
    """Return what is launched of a directory."""
    from dpdoctor.gate.sides import Checkout

    return Checkout(label=label, spec=spec, header=header(spec), import_roots=import_roots)


def progress(console: Console, *, quiet: bool, verbose: bool) -> Progress:
    """Return what shows how launches go on; `verbose`: also what rank 0's script prints."""
    if quiet:
        return Silence()
    kind = LiveProgress if console.is_terminal else PlainProgress
    return kind(console, echo=verbose)


class OfSides:
    """Progress of launches of several run directories: each is named after its directory, as in `base: ddp`."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown

    def began(self, title: str, directory: Path) -> None:
        """Show a launch with the name of its run directory."""
        self._shown.began(f"{directory.parent.name}: {title}", directory)

    def moved(self, beats: Sequence[Beat | None]) -> None:
        """Show how far it is."""
        self._shown.moved(beats)

    def ended(self, record: LaunchRecord) -> None:
        """Show how it ended."""
        self._shown.ended(record)
