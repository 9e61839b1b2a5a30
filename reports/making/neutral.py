"""A run directory without what names this machine: its host name, and the folders in which things lie here."""

from __future__ import annotations

import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpdoctor import rundir

_BASE64 = re.compile(r"[A-Za-z0-9+/]{200,}")
# What a report is made from.
FILES = {rundir.HEADER, rundir.LAUNCH, rundir.RANK, rundir.DIGEST}


def neutralise(run: Path, repository: Path, host: str) -> None:
    """Rewrite the records of a run: this host goes by `host`, and paths are told from the repository."""
    for path in sorted(run.rglob("*.json")):
        if path.name in FILES:
            rundir.write_json(path, _renamed(rundir.read_json(path, Any), repository, host))


def traces_of_this_machine(text: str, repository: Path) -> list[str]:
    """Return what still names this machine in a text that is to be kept; empty: nothing."""
    # In packed data a short name stands by chance.
    text = _BASE64.sub("", text)
    names = [re.escape(folder) for folder, _ in _folders(repository)] + [rf"\b{re.escape(socket.gethostname())}\b"]
    return [found[0] for name in names if (found := re.search(rf".{{0,40}}{name}.{{0,40}}", text))]


def _renamed(value: Any, repository: Path, host: str) -> Any:
    """Return a JSON value with every text in it renamed."""
    if isinstance(value, dict):
        return {key: _renamed(item, repository, host) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, repository, host) for item in value]
    if not isinstance(value, str):
        return value
    if value == socket.gethostname():
        return host
    for folder, name in _folders(repository):
        value = value.replace(f"{folder}/", f"{name}/" if name else "").replace(folder, name or ".")
    return value


def _folders(repository: Path) -> Iterator[tuple[str, str]]:
    """Yield the folders of this machine with what they are called instead, those within others first."""
    named = (
        (repository, ""),
        (Path(sys.prefix), "environment"),
        (Path.home(), "~"),
        (Path(tempfile.gettempdir()), "tmp"),
    )
    yield from ((str(folder), name) for folder, name in named if folder.name)
