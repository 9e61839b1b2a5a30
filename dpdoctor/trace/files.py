"""The trace files that a person means: of the files and folders named all, or one part that every machine agrees on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from dpdoctor.errors import TraceError, UsageError
from dpdoctor.trace.reader import rank_of
from dpdoctor.trace.stream import Stream

SUFFIXES = (".json", ".json.gz")  # torch's own handler writes *.pt.trace.json(.gz)
TIMELINE = "timeline.json.gz"  # holds events, too, but is made of traces
# A bare list is one of events where these tell their phase.
_EVENTS = re.compile(rb'"traceEvents"|^\s*\[\s*\{.*"ph"', re.DOTALL)
_HEAD_CHUNKS = 4


def locate(paths: Sequence[Path]) -> list[Path]:
    """Return the files named and the traces in the folders named, by the rank that their names say, then by name.

    Raises:
        UsageError: a path is not there, or a file is named twice.
        TraceError: a folder holds no trace.
    """
    found: dict[Path, Path] = {}
    for file in (file for path in paths for file in _files(path)):
        place = file.parent.resolve() / file.name  # not the file's own target: links to one trace may stand for ranks
        if place in found:
            raise UsageError(f"{file}: named twice" + (f", also as {found[place]}" if found[place] != file else ""))
        found[place] = file
    return sorted(found.values(), key=_order)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    files = list(_traces(path))
    if not files:
        wanted = " or ".join(f"*{suffix}" for suffix in SUFFIXES)
        raise TraceError(f'{path}: no trace in this folder: no {wanted} with "traceEvents"')
    return files


def _traces(folder: Path) -> Iterator[Path]:
    for file in folder.rglob("*"):
        if file.name.endswith(SUFFIXES) and file.name != TIMELINE and file.is_file() and _may_be_trace(file):
            yield file


def _may_be_trace(file: Path) -> bool:
    """Return whether the file begins like a trace; a file that cannot be read may be one, and reading it says more."""
    try:
        return _EVENTS.search(b"".join(islice(Stream(file), _HEAD_CHUNKS))) is not None
    except TraceError:
        return True


def _order(file: Path) -> tuple[bool, int, str]:
    rank = rank_of(file)
    return rank is None, rank or 0, str(file)


_SHARD = re.compile(r"(\d{1,9})/(\d{1,9})")


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """Part `index` of `count`, counted from 1."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ValueError(f"shard {self.index} of {self.count}")


def parse_shard(text: str) -> Shard:
    """Return what I/N says, as in 2/8.

    Raises:
        UsageError: it is not I/N with I from 1 to N.
    """
    match = _SHARD.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard {text}: not I/N with I from 1 to N, as in 1/8 to 8/8")
    return Shard(index=int(match[1]), count=int(match[2]))


def in_shard(sizes: Sequence[int], shard: Shard) -> list[int]:
    """Return the positions of one shard's files, in order; every file is in one shard, and shards are of like size.

    The largest file that is left goes to the shard that has least (longest-processing-time rule, Graham 1969).
    """
    held = [0] * shard.count
    chosen = []
    for position in sorted(range(len(sizes)), key=lambda at: (-sizes[at], at)):
        lightest = held.index(min(held))
        held[lightest] += max(sizes[position], 1)  # empty files are spread, too
        if lightest == shard.index - 1:
            chosen.append(position)
    return sorted(chosen)
